"""The real images, built without a registry. Their files are cached like those of the other test
images in scripts/engine: only a change of the description rebuilds them."""

import fcntl
import os
from pathlib import Path

from tests.images.boxes import LABEL, kakoi

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kakoi-tests")
_MAVEN = ("antrun", "assembly", "clean", "dependency", "deploy", "install", "site")


def build(variant: str, *apt: str, name: str = "") -> str:
    """Build an image and return its tag.

    `name`: a separate name for an image with more packages, so that other tests do not wait for it.
    """
    cache = CACHE / name
    cache.mkdir(parents=True, exist_ok=True)
    name = name or variant
    tag = f"kakoi-test:{name}"
    # Tests run in several processes. Each image has a lock, so the small one need not wait for the
    # big one.
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
    """With Go, Java and more. The first build takes minutes, mostly for downloads."""
    return build("full")


def tools() -> str:
    """With cargo, yarn, bundler, and maven with a repository of the plugins that it needs."""
    names = [f"libmaven-{each}-plugin-java" for each in _MAVEN]
    managers = ("cargo", "junit4", "maven", "yarnpkg", "ruby-bundler")
    return build("base", *managers, *names, name="tools")


BUILD = {"kakoi-test:base": base, "kakoi-test:full": full, "kakoi-test:tools": tools}
