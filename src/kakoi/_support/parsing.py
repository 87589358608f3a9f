"""Configuration files and their sections, parsed strictly.

Every wrong value raises a ConfigurationError that says where it is and what is expected there; for
an unknown key it names the nearest known one. Keys in camelCase or with dashes are read as
snake_case.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kakoi._support.late import dataclass, pattern
from kakoi._support.text import MAX_REPR, short_repr
from kakoi.errors import ConfigurationError

if TYPE_CHECKING:
    import yaml

LONGEST_S = 10.0 * 365 * 24 * 3600
_SIZE = pattern(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]i?b?|b)?", re.IGNORECASE)


class Section:
    """Keys and values. `origin` says where they are from, for errors; `known` lists the keys."""

    def __init__(self, data: object, origin: str, known: str) -> None:
        if data is not None and not isinstance(data, Mapping):
            raise wrong(origin, data, "a section of keys and values")
        self.origin = origin
        self._values: dict[str, object] = {}
        for key, value in (data or {}).items():
            name = _known(key, origin, known.split())
            if name in self._values:
                raise ConfigurationError(f"{origin}: `{name}` is given twice, in two spellings")
            self._values[name] = value

    def has(self, name: str) -> bool:
        """Is there a value? None (an empty value in YAML) does not count."""
        return self._values.get(name) is not None

    def raw(self, name: str) -> object:
        """Return the unchecked value, or None."""
        return self._values.get(name)

    def at(self, name: str) -> str:
        """Return where the value of `name` is, for errors."""
        return f"{self.origin}.{name}"

    def text(self, name: str, default: str = "") -> str:
        """Return a text."""
        value = self._values.get(name)
        return default if value is None else as_text(value, self.at(name))

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._values.get(name)
        return default if value is None else as_flag(value, self.at(name))

    def seconds(self, name: str, default: float) -> float:
        """Return a time in seconds, above zero."""
        value = self._values.get(name)
        return default if value is None else float(as_seconds(value, self.at(name)))

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return a list of texts, none of them empty; None if there is no value."""
        value = self._values.get(name)
        return None if value is None else as_texts(value, self.at(name))


def as_text(value: object, where: str) -> str:
    """Check that `value` is a text that can be passed to a program."""
    if not isinstance(value, str):
        raise wrong(where, value, "text")
    if "\0" in value:
        raise wrong(where, value, "text without a NUL")
    return value


def as_flag(value: object, where: str) -> bool:
    """Check that `value` is true or false, and not merely truthy."""
    if not isinstance(value, bool):
        raise wrong(where, value, "true or false")
    return value


def as_texts(value: object, where: str) -> tuple[str, ...]:
    """Check that `value` is a list of texts, none of them empty."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise wrong(where, value, "a list of texts")
    if not all(each.strip() and "\0" not in each for each in value):
        raise wrong(where, value, "a list of texts, none of them empty or with a NUL")
    return tuple(value)


def as_folders(value: object, where: str) -> tuple[str, ...]:
    """Check that `value` is a list of folders that mean the same from everywhere."""
    folders = as_texts(value, where)
    for folder in folders:
        if not folder.startswith(("/", "~")):
            raise wrong(
                where,
                folder,
                "a folder whose path begins with `/` or `~`",
                hint="a relative path would be another folder from each directory",
            )
    return folders


def as_seconds(value: object, where: str) -> float:
    """Check that `value` is a time in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LONGEST_S:
        raise wrong(where, value, "a number of seconds above zero")
    return value


_UNITS = (("t", 1024**4), ("g", 1024**3), ("m", 1024**2), ("k", 1024))


def as_size(value: object, where: str) -> int:
    """Return a size in bytes, from a number or a text such as `512MiB`, `4g` or `1.5 GiB`.

    A unit is a power of 1024. `GB` and its like are refused: they are powers of 1000 to some people
    and of 1024 to others.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = (match[2] or "").lower() if match else ""
    is_ambiguous = len(unit) == 2 and unit.endswith("b")
    if match and not is_ambiguous:
        size = int(float(match[1]) * 1024 ** "bkmgt".index(unit[:1] or "b"))
        if 0 < size < 2**63:
            return size
    raise wrong(
        where,
        value,
        "a size such as `1GiB` or `512MiB`, or a number of bytes",
        hint=f"write {unit[0].upper()}iB, which is always a power of 1024" if is_ambiguous else "",
    )


def size_text(size: int) -> str:
    """Return a size as a person writes it: `4g`, `512m`, or a number of bytes."""
    unit, factor = next(((u, s) for u, s in _UNITS if size % s == 0), ("", 1))
    return f"{size // factor}{unit}"


def wrong(origin: str, value: object, wanted: str, *, hint: str = "") -> ConfigurationError:
    """Return an error that says what the value at `origin` must be."""
    return ConfigurationError(f"{origin} is {short_repr(value)}; it must be {wanted}", hint=hint)


def snake_case(key: str) -> str:
    """Return a key in snake_case: `maxSize` and `max-size` become `max_size`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).lower().replace("-", "_")


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean …?` if a known name is close to `name`, else an empty text.

    `cutoff`: how close it must be; 1 means the same name.
    """
    import difflib  # For errors only.

    close = isinstance(name, str) and difflib.get_close_matches(
        name[:MAX_REPR], list(known), n=1, cutoff=cutoff
    )
    return f"; did you mean `{close[0]}`?" if close else ""


def _known(key: object, origin: str, known: list[str]) -> str:
    written = key[:MAX_REPR] if isinstance(key, str) else short_repr(key)
    plain = snake_case(written)
    if plain in known:
        return plain
    raise ConfigurationError(
        f"{origin}: unknown key `{written}`{nearest(plain, known)}",
        hint=f"known keys: {', '.join(known)}",
    )


_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 16
# A long `a.a.a.…`, which TOML takes for a key, takes minutes to parse.
_LONG_TOML_KEY = pattern(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")
# A long `1:1:1:…`, which YAML takes for a number in base 60, takes hours to parse.
_MAX_NUMBER = 64
# Raised by the YAML constructors for `!!bool x`, `!!int ""` and the like.
_OF_BROKEN_TAGS = (ValueError, LookupError, TypeError, AttributeError)
_FENCE = "---"


@dataclass(frozen=True, slots=True)
class Item:
    """A value in a file, with its keys and its line (0: unknown)."""

    keys: tuple[str, ...]
    value: Any
    line: int


def read_text(path: Path, *, most_bytes: int = _MAX_BYTES, follow_links: bool = True) -> str | None:
    """Return the text of a regular file of limited size; None if there is no such file.

    `follow_links` must be False for a file that commands can write: a link could point anywhere.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        # Non-blocking: a command may have replaced a project file with a pipe.
        fd = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            _check_readable(fd, path)
            data = file.read(most_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if not follow_links and path.is_symlink():
            raise ConfigurationError(
                f"{path} is a link; links are not followed here",
                hint="replace it with a file, or remove it",
            ) from None
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most_bytes:
        raise ConfigurationError(f"{path} is too long: it has more than {most_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {error.start})") from None


def _check_readable(fd: int, path: Path) -> None:
    """Accept a regular file, or what a shell passes instead of one: `--config <(…)`, /dev/stdin."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode) and not path.is_relative_to("/dev"):
        raise ConfigurationError(f"{path} is not a regular file", hint="remove it")
    os.set_blocking(fd, True)


def begins_with_front_matter(text: str) -> bool:
    """Whether the first line of a text opens front matter."""
    return text.partition("\n")[0].strip() == _FENCE


def front_matter(text: str, *, origin: str) -> tuple[Mapping[str, Any], str]:
    """Return the values between the two `---` lines that begin a Markdown text, and the rest."""
    if not begins_with_front_matter(text):
        raise ConfigurationError(
            f"{origin} has no front matter", hint=f"begin with {_FENCE}, `name: …`, {_FENCE}"
        )
    lines = text.replace("\r\n", "\n").split("\n")
    end = next((at for at, line in enumerate(lines) if at and line.strip() == _FENCE), None)
    if end is None:
        raise ConfigurationError(
            f"{origin}: the front matter has no end", hint=f"end it with a line `{_FENCE}`"
        )
    items = yaml_items("\n".join(["", *lines[1:end]]), Path(origin))
    values = {".".join(item.keys): item.value for item in items}
    return values, "\n".join(lines[end + 1 :]).strip()


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the values in a text; `path` is where it is from."""
    if _LONG_TOML_KEY.search(text):
        raise ConfigurationError(f"{path} is nested too deeply")
    import tomllib  # Few files are TOML.

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # A number can also be too long.
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None


def yaml_items(text: str, path: Path) -> Iterator[Item]:
    """Yield everything that a text sets; `path` is its origin. No text takes long to parse."""
    import yaml  # Most commands read no YAML.

    try:
        _guard(text, path)
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                _check(node, path)
                yield from _walk(loader, node, (), path)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigurationError(f"{at} is not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, *_OF_BROKEN_TAGS) as error:
        raise ConfigurationError(
            f"{path} is not valid YAML: {' '.join(str(error).split())}"
        ) from None


def _guard(text: str, path: Path) -> None:
    """Refuse what would make the parser slow or use much memory, before it has read it all."""
    import yaml  # Most commands read no YAML.

    depth = 0
    for event in yaml.parse(text):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise ConfigurationError(
                f"{path}:{line} contains an alias (`*{event.anchor}`)",
                hint="write the value itself instead",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise ConfigurationError(f"{path}:{line} is nested too deeply")


def _check(node: "yaml.Node", path: Path) -> None:
    """Check that every key is a unique name, also in lists, and that numbers are not too long."""
    import yaml  # Most commands read no YAML.

    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > _MAX_NUMBER and node.tag.endswith((":int", ":float")):
            raise ConfigurationError(f"{path}:{line}: the number is too long")
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check(each, path)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in seen:
                what = "is not a name" if key is None else "occurs twice"
                line = key_node.start_mark.line + 1
                named = str(key_node.value)[:80]
                raise ConfigurationError(f"{path}:{line}: the key {named!r} {what}")
            seen.add(key)
            _check(value_node, path)


def _walk(
    loader: "yaml.SafeLoader", node: "yaml.Node", keys: tuple[str, ...], path: Path
) -> Iterator[Item]:
    import yaml  # Most commands read no YAML.

    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            yield from _walk(loader, value_node, (*keys, key_node.value), path)
    elif not keys:
        raise ConfigurationError(f"{path}:{line}: expected keys and values")
    else:
        yield Item(keys, loader.construct_object(node, deep=True), line)


def read_items(path: Path, *, follow_links: bool = True) -> list[Item] | None:
    """Return everything that a file sets; None if there is no such file."""
    text = read_text(path, follow_links=follow_links)
    if text is None:
        return None
    is_toml = path.suffix == ".toml"
    return list(_flatten(parse_toml(text, path), (), path) if is_toml else yaml_items(text, path))


def _flatten(table: dict[str, Any], keys: tuple[str, ...], path: Path) -> Iterator[Item]:
    if len(keys) > _MAX_DEPTH:
        raise ConfigurationError(f"{path} is nested too deeply")
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*keys, key), path)
        else:
            yield Item((*keys, key), value, 0)
