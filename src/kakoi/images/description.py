"""The files of this folder as values: what an image holds, and what builds of it are fed."""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Variant = Literal["base", "full"]
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)
FOLDER: Final = Path(__file__).resolve().parent
CA: Final = "ca.crt"
_FILES: Final = (
    *("Dockerfile", "contents.txt", "setup.sh", "install.sh", "npm.sh"),
    *(f"allowlist/{each}.txt" for each in ("apt", "pip", "npm")),
)
_EXECUTABLE: Final = ("setup.sh", "install.sh")
# What an image is set to, beside its files. `docker import` takes these words, too.
_SETTINGS: Final = re.compile(r"(?:ENV|USER|WORKDIR|ENTRYPOINT|CMD) .*")


@dataclass(frozen=True, slots=True)
class Contents:
    """What contents.txt says of a variant. `wishes`: checks that may fail, which is only told."""

    apt: tuple[str, ...]
    checks: tuple[str, ...]
    wishes: tuple[str, ...]


def contents(variant: Variant, text: str | None = None) -> Contents:
    """What a variant holds; `full` is all of `base` and more."""
    given = (FOLDER / "contents.txt").read_text("utf-8") if text is None else text
    lines = [line.split(None, 2) for line in given.splitlines() if not line.startswith("#")]
    ours = [words for words in lines if words and words[0] in ("base", variant)]

    def of(kind: str) -> tuple[str, ...]:
        return tuple(words[2].strip() for words in ours if words[1] == kind)

    return Contents(of("apt"), of("check"), of("wish"))


def files(*, apt: Sequence[str] = ()) -> Mapping[str, bytes]:
    """Everything that a build needs, by name; `apt` are more packages of Debian's."""
    found = {name: (FOLDER / name).read_bytes() for name in _FILES}
    more = "".join(f"base apt {name}\n" for name in apt)
    return {**found, "contents.txt": found["contents.txt"] + more.encode("ascii")}


def key_of(given: Mapping[str, bytes], *words: str) -> str:
    """What names these files in this order: another key, another image."""
    digest = hashlib.sha256(repr(words).encode())
    for name, data in sorted(given.items()):
        digest.update(repr((name, data)).encode())
    return digest.hexdigest()[:16]


def archive(given: Mapping[str, bytes]) -> bytes:
    """The files as a tar file, the same every time."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in given.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if name in _EXECUTABLE else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def image_settings(dockerfile: str, labels: Mapping[str, str]) -> Iterable[str]:
    """The settings of the first stage of a Dockerfile, as words for `docker import --change`."""
    stage = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)[1]
    yield from (line for line in stage.splitlines() if _SETTINGS.fullmatch(line))
    yield from (f"LABEL {name}={value}" for name, value in labels.items())
