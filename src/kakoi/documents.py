"""Documents that strangers write (YAML, TOML, front matter of Markdown) → values.

Whatever is in one, reading it is quick, small and quiet: it gives values or a ConfigurationError.
"""

import errno
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kakoi.errors import ConfigurationError

_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 16
# Of `a.a.a.…`, which TOML takes for a key, a long one takes minutes.
_LONG_TOML_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")
# Of `1:1:1:…`, which YAML takes for a number to the base of sixty, a long one takes hours.
_MAX_NUMBER = 64
# What its constructors raise for `!!bool x`, `!!int ""` and the like.
_OF_BROKEN_TAGS = (ValueError, LookupError, TypeError, AttributeError)
_FENCE = "---"


@dataclass(frozen=True, slots=True)
class Item:
    """A value as it is written: where it is in the file, by keys and by line (0: unknown)."""

    keys: tuple[str, ...]
    value: Any
    line: int


def read_text(path: Path, *, most_bytes: int = _MAX_BYTES, follow_links: bool = True) -> str | None:
    """A file's text, if it is one and not too long; None if there is no such file.

    `follow_links`: not for a file that commands can write, or it would lead them out.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        # Not blocking: a command may have put a pipe in the place of a file of the project.
        fd = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            _check_readable(fd, path)
            data = file.read(most_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if not follow_links and path.is_symlink():
            raise ConfigurationError(
                f"{path} is a link, which could lead anywhere: it is not read",
                hint="put a file in its place, or remove it",
            ) from None
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most_bytes:
        raise ConfigurationError(f"{path} has more than {most_bytes} bytes; that is too long")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no UTF-8 text (byte {error.start})") from None


def _check_readable(fd: int, path: Path) -> None:
    """A file; or what a shell hands over in place of one: `--config <(…)`, /dev/stdin."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode) and not path.is_relative_to("/dev"):
        raise ConfigurationError(f"{path} is no file", hint="remove it")
    os.set_blocking(fd, True)


def front_matter(text: str, *, origin: str) -> tuple[Mapping[str, Any], str]:
    """The values between the two lines of `---` that a Markdown text begins with, and the rest."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != _FENCE or _FENCE not in (line.strip() for line in lines[1:]):
        raise ConfigurationError(
            f"{origin} has no front matter", hint=f"begin with {_FENCE}, `name: …`, {_FENCE}"
        )
    end = next(at for at, line in enumerate(lines) if at and line.strip() == _FENCE)
    items = yaml_items("\n".join(["", *lines[1:end]]), Path(origin))
    values = {".".join(item.keys): item.value for item in items}
    return values, "\n".join(lines[end + 1 :]).strip()


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """What a text holds; `path` is where it is from."""
    if _LONG_TOML_KEY.search(text):
        raise ConfigurationError(f"{path} is nested too deeply")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # A number can be too long, too.
        raise ConfigurationError(f"{path} is no TOML: {error}") from None


def yaml_items(text: str, path: Path) -> Iterator[Item]:
    """Everything that a text sets; `path` is where it is from. No text keeps it busy for long."""
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
        raise ConfigurationError(f"{at} is no YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, *_OF_BROKEN_TAGS) as error:
        raise ConfigurationError(f"{path} is no YAML: {' '.join(str(error).split())}") from None


def _guard(text: str, path: Path) -> None:
    """Refuse what makes the parser itself slow or big, before it has read all of it."""
    depth = 0
    for event in yaml.parse(text):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise ConfigurationError(
                f"{path}:{line} holds an alias (`*{event.anchor}`)",
                hint="write the value out where it is meant",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise ConfigurationError(f"{path}:{line} is nested too deeply")


def _check(node: yaml.Node, path: Path) -> None:
    """Every key is a name and there once, also in lists; numbers have a sensible length."""
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
                what = "is no name" if key is None else "is there already"
                line = key_node.start_mark.line + 1
                named = str(key_node.value)[:80]
                raise ConfigurationError(f"{path}:{line}: the key {named!r} {what}")
            seen.add(key)
            _check(value_node, path)


def _walk(
    loader: yaml.SafeLoader, node: yaml.Node, keys: tuple[str, ...], path: Path
) -> Iterator[Item]:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            yield from _walk(loader, value_node, (*keys, key_node.value), path)
    elif not keys:
        raise ConfigurationError(f"{path}:{line}: there are no keys and values")
    else:
        yield Item(keys, loader.construct_object(node, deep=True), line)
