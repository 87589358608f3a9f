"""JSON without the `json` package, whose import takes a third of a runner's start-up time.

It calls the same C functions. A Python without them uses the package.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\n\r"


class _Reading:
    """The attributes that the C scanner reads: the standard rules of JSON."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 - the scanner's own, and empty between two calls


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON")


def _quick() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    scan: Any = make_scanner(_Reading)  # type: ignore[arg-type] # anything with these names

    def dumps(value: Any) -> bytes:
        encode = make_encoder(
            {}, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True
        )
        return "".join(encode(value, 0)).encode()

    def loads(data: bytes) -> Any:
        text = data.decode("utf-8", "surrogatepass").strip(_SPACE)
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("this is not JSON") from None
        if end != len(text):
            raise ValueError("there is more than JSON")
        return value

    example = {"a": [1, -2.5, "\u00fc\ud800\n", None, True, {}], "b": ""}
    if loads(dumps(example)) != example:
        raise ValueError("another JSON than ours")
    return dumps, loads


def _whole() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    import json

    return lambda value: json.dumps(value).encode(), json.loads


try:
    dumps, loads = _quick()
except (ImportError, TypeError, ValueError):
    dumps, loads = _whole()
