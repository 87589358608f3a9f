"""Check an image against its description, in one container without a network."""

import json
import shlex
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from kakoi._support.late import dataclass
from kakoi.backends.docker.engine import Engine
from kakoi.errors import SandboxError
from kakoi.images.build import KEY_LABEL, VARIANT_LABEL
from kakoi.images.description import VARIANTS, Variant, contents

_CHECK_S: Final = 300.0
# Properties of every image, and shell commands that succeed if the image has them.
_PROPERTIES: Final = {
    "commands run as a user that is not root": '[ "$(id -u)" -ne 0 ] && id -un',
    "the user is agent, with bash": "getent passwd agent | grep ':/bin/bash$'",
    "/workspace/project is writable": "test -w /workspace/project",
    "/workspace/tmp is writable": "test -w /workspace/tmp",
    "/etc/allowlist exists": "cd /etc/allowlist && ls apt.txt pip.txt npm.txt | tr '\\n' ' '",
    "/etc/allowlist cannot be changed": "! touch /etc/allowlist/x && "
    "! chmod u+w /etc/allowlist/pip.txt && ! mv /etc/allowlist /tmp/ && "
    "for list in /etc/allowlist/*; do ! test -w $list || exit 1; done",
    "install.sh exists": "test -x /usr/local/bin/install.sh",
    "install.sh cannot be changed": "cd /usr/local/bin && ! test -w install.sh && ! test -w .",
    "there is no sudo": "! command -v sudo",
    "no program is setuid or setgid": "! find / -xdev -type f -perm /6000 2>/dev/null | grep .",
}


class CheckOutcome(StrEnum):
    """The outcome of a check. An optional program that is absent is `missing`, not `failed`."""

    OK = "ok"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """The result of one check; `detail` is the first line of its output."""

    name: str
    outcome: CheckOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image that kakoi has built on this machine."""

    name: str
    variant: str
    key: str
    size: str
    created: str


async def check_image(
    engine: Engine, image: str, variant: Variant | None = None
) -> list[ImageCheck]:
    """Check an image. `variant`: None reads it from the image's label, by default `full`."""
    if await engine.find_image(image) is None:
        raise SandboxError(f"image `{image}` not found", hint="`kakoi image build` builds one")
    wanted = contents(variant or await _variant_of(engine, image))
    properties = [(name, script, CheckOutcome.FAILED) for name, script in _PROPERTIES.items()]
    checks = [(words, _quoted(words), CheckOutcome.FAILED) for words in wanted.checks]
    wishes = [(words, _quoted(words), CheckOutcome.MISSING) for words in wanted.wishes]
    steps = [*properties, *checks, *wishes]
    args = ["run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "sh", image]
    script = "\n".join(_step(number, text) for number, (_, text, _) in enumerate(steps))
    done = await engine.call([*args, "-c", script], doing="checking an image", timeout_s=_CHECK_S)
    answers = dict(_answers(done.stdout))
    if not answers:
        raise SandboxError(f"nothing runs in `{image}`: {done.stderr.strip()[:500]}")
    return [
        _judged(name, answers.get(number), failing)
        for number, (name, _, failing) in enumerate(steps)
    ]


async def list_images(engine: Engine) -> list[BuiltImage]:
    """Return the images that were built on this machine, the newest first."""
    form = "{{.Repository}}:{{.Tag}}\t{{.ID}}\t{{.Size}}\t{{.CreatedSince}}"
    args = ["image", "ls", "--filter", f"label={VARIANT_LABEL}", "--format", form]
    output = await engine.must(args, doing="listing images")
    found = [line.split("\t") for line in output.splitlines() if line.count("\t") == 3]
    built = []
    for name, identity, size, created in found:
        labels = await _labels_of(engine, identity)
        built.append(
            BuiltImage(
                name, labels.get(VARIANT_LABEL, ""), labels.get(KEY_LABEL, ""), size, created
            )
        )
    return built


async def _variant_of(engine: Engine, image: str) -> Variant:
    label = (await _labels_of(engine, image)).get(VARIANT_LABEL)
    return next((each for each in VARIANTS if each == label), "full")


async def _labels_of(engine: Engine, image: str) -> dict[str, str]:
    args = ["image", "inspect", "--format", "{{json .Config.Labels}}", image]
    labels: dict[str, str] | None = json.loads(await engine.must(args, doing="reading labels"))
    return labels or {}


def _quoted(words: str) -> str:
    return shlex.join(words.split())


def _step(number: int, script: str) -> str:
    return (
        f"output=$({{ {script}\n}} 2>&1 </dev/null); "
        f'printf \'%s %s %s\\n\' {number} $? "$(printf %s "$output" | head -n 1)"'
    )


def _answers(text: str) -> Iterator[tuple[int, tuple[int, str]]]:
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        status, _, detail = rest.partition(" ")
        if number.isdigit() and status.isdigit():
            yield int(number), (int(status), detail)


def _judged(name: str, answer: tuple[int, str] | None, failing: CheckOutcome) -> ImageCheck:
    status, detail = answer or (1, "no answer")
    return ImageCheck(name, CheckOutcome.OK if status == 0 else failing, detail.strip()[:200])
