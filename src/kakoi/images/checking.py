"""Hold an image against its description: in one container of it, without a network."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kakoi.errors import SandboxError
from kakoi.images.building import KEY_LABEL, VARIANT_LABEL
from kakoi.images.description import VARIANTS, Variant, contents
from kakoi.sandbox.docker_engine import Engine

_CHECK_S: Final = 300.0
# What every image is to be like, in words of a shell that succeed if it is.
_SHAPE: Final = {
    "commands run as a user that is not root": '[ "$(id -u)" -ne 0 ] && id -un',
    "its user is agent, with bash": "getent passwd agent | grep ':/bin/bash$'",
    "/workspace/project can be written": "test -w /workspace/project",
    "/workspace/tmp can be written": "test -w /workspace/tmp",
    "/etc/allowlist is there": "cd /etc/allowlist && ls apt.txt pip.txt npm.txt | tr '\\n' ' '",
    "/etc/allowlist cannot be changed": "! touch /etc/allowlist/x && "
    "! chmod u+w /etc/allowlist/pip.txt && ! mv /etc/allowlist /tmp/ && "
    "for list in /etc/allowlist/*; do ! test -w $list || exit 1; done",
    "install.sh is there": "test -x /usr/local/bin/install.sh",
    "install.sh cannot be changed": "cd /usr/local/bin && ! test -w install.sh && ! test -w .",
    "there is no sudo": "! command -v sudo",
    "no program gives the rights of another user": "! find / -xdev -type f -perm /6000 "
    "2>/dev/null | grep .",
}


class Outcome(StrEnum):
    """What came of a check. A wish that is not granted is `missing`, which is no failure."""

    OK = "ok"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One check; `detail` is the first line that it wrote."""

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    """An image of ours that is here."""

    name: str
    variant: str
    key: str
    size: str
    created: str


async def check_image(engine: Engine, image: str, variant: Variant | None = None) -> list[Check]:
    """What holds of an image. `variant`: None is what it says of itself, else `full`."""
    if await engine.find_image(image) is None:
        raise SandboxError(f"there is no image `{image}` here", hint="kakoi image build makes one")
    wanted = contents(variant or await _variant_of(engine, image))
    shape = [(name, script, Outcome.FAILED) for name, script in _SHAPE.items()]
    checks = [(words, _quoted(words), Outcome.FAILED) for words in wanted.checks]
    wishes = [(words, _quoted(words), Outcome.MISSING) for words in wanted.wishes]
    asked = [*shape, *checks, *wishes]
    args = ["run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "sh", image]
    script = "\n".join(_step(number, text) for number, (_, text, _) in enumerate(asked))
    done = await engine.call([*args, "-c", script], doing="checking an image", timeout_s=_CHECK_S)
    answers = dict(_answers(done.stdout))
    if not answers:
        raise SandboxError(f"nothing runs in `{image}`: {done.stderr.strip()[:500]}")
    return [
        _judged(name, answers.get(number), failing)
        for number, (name, _, failing) in enumerate(asked)
    ]


async def list_images(engine: Engine) -> list[Built]:
    """The images that were built here, the newest first."""
    form = "{{.Repository}}:{{.Tag}}\t{{.ID}}\t{{.Size}}\t{{.CreatedSince}}"
    args = ["image", "ls", "--filter", f"label={VARIANT_LABEL}", "--format", form]
    said = await engine.must(args, doing="listing images")
    found = [line.split("\t") for line in said.splitlines() if line.count("\t") == 3]
    built = []
    for name, identity, size, created in found:
        labels = await _labels_of(engine, identity)
        built.append(
            Built(name, labels.get(VARIANT_LABEL, ""), labels.get(KEY_LABEL, ""), size, created)
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
        f"said=$({{ {script}\n}} 2>&1 </dev/null); "
        f'printf \'%s %s %s\\n\' {number} $? "$(printf %s "$said" | head -n 1)"'
    )


def _answers(text: str) -> Iterator[tuple[int, tuple[int, str]]]:
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        status, _, said = rest.partition(" ")
        if number.isdigit() and status.isdigit():
            yield int(number), (int(status), said)


def _judged(name: str, answer: tuple[int, str] | None, failing: Outcome) -> Check:
    status, said = answer or (1, "no answer")
    return Check(name, Outcome.OK if status == 0 else failing, said.strip()[:200])
