"""The images, really built, without a registry. Their files are kept as scripts/engine keeps those of
the other test images: a change of the description makes them anew, and nothing else."""

import fcntl
import os
from pathlib import Path

from tests.images.boxes import LABEL, kakoi

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kakoi-tests")
_MAVEN = ("antrun", "assembly", "clean", "dependency", "deploy", "install", "site")


def build(variant: str, *apt: str, name: str = "") -> str:
    """`name`: of one with more packages, which are not in the way of who needs none of them."""
    cache = CACHE / name
    cache.mkdir(parents=True, exist_ok=True)
    name = name or variant
    tag = f"kakoi-test:{name}"
    # Tests run in several processes; who needs the small one does not wait for the big one.
    with (CACHE / f"image-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = kakoi(
            *("image", "build", variant, "--without-registry", "--tag", tag),
            *("--cache", str(cache), "--label", LABEL),
            *(word for each in apt for word in ("--apt", each)),
            timeout_s=1800,
        )
    assert said.returncode == 0, said.stderr
    return tag


def base() -> str:
    return build("base")


def full() -> str:
    """With Go, Java and more. On a new machine it takes minutes, most of them of the network."""
    return build("full")


def tools() -> str:
    """With cargo, and with maven and a repository of the plugins that it needs to download anything."""
    names = [f"libmaven-{each}-plugin-java" for each in _MAVEN]
    return build("base", "cargo", "junit4", "maven", *names, name="tools")


BUILD = {"kakoi-test:base": base, "kakoi-test:full": full, "kakoi-test:tools": tools}
