"""The files in this folder: what an image contains, and what its build needs."""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from kakoi._support.late import dataclass, pattern

Variant = Literal["base", "full"]
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)
FOLDER: Final = Path(__file__).resolve().parent
CA: Final = "ca.crt"
_FILES: Final = (
    *("Dockerfile", "contents.txt", "setup.sh", "install.sh", "npm.sh", "permissions.sh"),
    *(f"allowlist/{each}.txt" for each in ("apt", "pip", "npm")),
)
_EXECUTABLE: Final = ("setup.sh", "install.sh")
# The image's configuration besides its files. `docker import --change` takes the same instructions.
_SETTINGS: Final = pattern(r"(?:ENV|USER|WORKDIR|ENTRYPOINT|CMD) .*")


@dataclass(frozen=True, slots=True)
class Contents:
    """The part of contents.txt for a variant. `wishes`: checks that are allowed to fail."""

    apt: tuple[str, ...]
    checks: tuple[str, ...]
    wishes: tuple[str, ...]


def contents(variant: Variant, text: str | None = None) -> Contents:
    """Return the contents of a variant; `full` is all of `base` and more."""
    source = (FOLDER / "contents.txt").read_text("utf-8") if text is None else text
    lines = [line.split(None, 2) for line in source.splitlines() if not line.startswith("#")]
    ours = [words for words in lines if words and words[0] in ("base", variant)]

    def of(kind: str) -> tuple[str, ...]:
        return tuple(words[2].strip() for words in ours if words[1] == kind)

    return Contents(of("apt"), of("check"), of("wish"))


def files(*, apt: Sequence[str] = ()) -> Mapping[str, bytes]:
    """Return the files that a build needs, by name; `apt`: additional Debian packages."""
    found = {name: (FOLDER / name).read_bytes() for name in _FILES}
    more = "".join(f"base apt {name}\n" for name in apt)
    return {**found, "contents.txt": found["contents.txt"] + more.encode("ascii")}


def content_key(files: Mapping[str, bytes], *words: str) -> str:
    """Return a hash of the files and options of a build: another key means another image."""
    digest = hashlib.sha256(repr(words).encode())
    for name, data in sorted(files.items()):
        digest.update(repr((name, data)).encode())
    return digest.hexdigest()[:16]


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a tar archive, the same every time."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if name in _EXECUTABLE else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def image_settings(dockerfile: str, labels: Mapping[str, str]) -> Iterable[str]:
    """Yield the settings of a Dockerfile's first stage, for `docker import --change`."""
    stage = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)[1]
    yield from (line for line in stage.splitlines() if _SETTINGS.fullmatch(line))
    yield from (f"LABEL {name}={value}" for name, value in labels.items())
