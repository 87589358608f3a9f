"""Installs Python packages into a project's virtual environment, without running code of either.

Runs inside the sandbox as `python3 -I - VENV WORK WORD...`, with this text as its stdin. WORK is an
empty folder, and each WORD is an argument of `pip download`: a package, or `-r` and a requirements
file. If VENV is empty, pip decides where to install for this user. Standard library only,
Python >= 3.8.

A project can put anything into its environment: another pip, settings that name another index,
modules that run when Python starts. So a trusted pip downloads the package and all its dependencies
as wheels, and installs them. It starts no program, because installing a source distribution would
run its code. On success this prints one name and version per line.
"""

from __future__ import annotations

import email
import os
import re
import resource
import subprocess
import sys
import zipfile

_LARGEST_FILE = 4 * 1024**3
_MOST_MEMORY = 1024**3
_MOST_METADATA = 1024**2
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_PARTS = 5  # NAME-VERSION-PYTHON-ABI-PLATFORM.whl
_COMMON = ["--isolated", "--no-input", "--disable-pip-version-check"]
_LOCAL = ["--no-index", "--no-deps", "--no-warn-script-location"]
# Prints the wheels that `venv` installs, one path per line; nothing unless it finds all of them.
_BUNDLED = """
import glob, os, sys
try:
    import ensurepip
except ImportError:
    sys.exit()
names = ["pip"] if sys.version_info >= (3, 12) else ["pip", "setuptools"]
own = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
for folder in (own, "/usr/share/python-wheels"):
    found = [glob.glob(os.path.join(folder, name + "-*.whl")) for name in names]
    if all(len(each) == 1 for each in found):
        print("\\n".join(each[0] for each in found))
        break
"""
# Runs pip, which must not start any program. With a site-packages folder, pip works on that
# environment: it can list and replace its packages, but imports none of them.
PIP_PROGRAM = """
import errno, importlib.machinery, os, runpy, sys
PROGRAMS = ("subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "pty.")
def refuse(event, args):
    # Asked for its version, to know which wheels are for this system.
    is_loader = event == "subprocess.Popen" and str(args[1]).startswith("['/lib/ld-musl-")
    if event.startswith(PROGRAMS) and not is_loader:
        raise PermissionError(errno.EPERM, "only wheels are installed, nothing is built")
venv, site = sys.argv[1:3]
del sys.argv[1:3]
own = [each for each in sys.path if each]
class OwnModules(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return super().find_spec(name, own if path is None else path, target)
if venv:
    finders = [each for each in sys.meta_path if each is not importlib.machinery.PathFinder]
    sys.meta_path[:] = [*finders, OwnModules]
    sys.modules.pop("sysconfig", None)
    sys.prefix = sys.exec_prefix = venv
    sys.executable = os.path.join(venv, "bin", "python")
    sys.path[:] = [*(each for each in own if "-packages" not in each), site]
sys.addaudithook(refuse)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


class Refused(Exception):
    """Nothing was installed; the message says why."""


def main(venv: str, work: str, *wanted: str) -> None:
    """Install the packages and print everything that was installed."""
    _limit()
    wheels = os.path.join(work, "wheels")
    os.mkdir(wheels)  # pip does not create it if there is nothing to download.
    download = ["--progress-bar", "off", "--only-binary", ":all:", "--dest", wheels, *wanted]
    python = _python_for(venv) if venv else sys.executable
    tool = _python_with_pip(python, venv, work) if venv else python
    target = [venv, _packages_of(venv, python) if venv else ""]
    _run_pip([tool, "-I"], ["", ""], ["download", *_COMMON, *download])
    files = [os.path.join(wheels, each) for each in sorted(os.listdir(wheels))]
    came = [_name_and_version(each) for each in files]
    if files and venv:
        words = ["install", *_COMMON, *_LOCAL, "--force-reinstall", *files]
        _run_pip([tool, "-I"], target, words, PIP_CONFIG_FILE=os.devnull)
    elif files:
        # Not `-I`: in isolated mode, or without the image's settings, pip would not know where to
        # install.
        _run_pip([tool, "-E"], target, ["install", *_COMMON, *_LOCAL, *files])
    sys.stdout.writelines(f"{name} {version}\n" for name, version in came)


def _name_and_version(wheel: str) -> tuple[str, str]:
    """Return them from the file name. Refused: the metadata names another package."""
    called = os.path.basename(wheel).split("-")
    if not wheel.endswith(".whl") or len(called) < _PARTS:
        raise Refused(f"{os.path.basename(wheel)} is not a wheel")
    with zipfile.ZipFile(wheel) as archive:
        inside = [each for each in archive.namelist() if _METADATA.fullmatch(each)]
        if len(inside) != 1:
            raise Refused(f"{os.path.basename(wheel)} does not name its package")
        with archive.open(inside[0]) as file:
            about = email.message_from_bytes(file.read(_MOST_METADATA))
    names = [re.sub(r"[-_.]+", "-", str(each)).lower() for each in (called[0], about["Name"])]
    if names[0] != names[1]:
        raise Refused(f"{os.path.basename(wheel)} claims to be another package")
    return names[0], called[1]


def _python_for(venv: str) -> str:
    """Return the Python that the environment was created with. Refused: the project provides it."""
    if not os.path.lexists(venv):
        return sys.executable
    if os.path.islink(venv) or not os.path.isfile(os.path.join(venv, "pyvenv.cfg")):
        raise Refused(f"{venv} is not a virtual environment: remove it, and a new one is made")
    found = os.path.realpath(os.path.join(venv, "bin", "python"))
    if found == os.path.realpath(sys.executable):
        return sys.executable
    is_ours = os.path.isfile(found) and not os.access(found, os.W_OK)
    if not is_ours or not re.fullmatch(r"python[0-9.]*", os.path.basename(found)):
        raise Refused(f"{venv} was made with a Python that is missing: remove it")
    return found


def _python_with_pip(python: str, venv: str, work: str) -> str:
    """Return a Python with a pip that no project can have modified. Creates `venv` if missing."""
    has_pip = _is_done([python, "-I", "-c", "import pip"])
    is_new = not os.path.lexists(venv)
    if has_pip and (not is_new or _make_from_wheels(python, venv)):
        return python
    made = venv if is_new else os.path.join(work, "tool")
    _run([python, "-I", "-m", "venv", made], doing="creating a virtual environment")
    return os.path.join(made, "bin", "python")


def _make_from_wheels(python: str, venv: str) -> bool:
    """Create the environment with the packages that `venv` would put into it.

    Without byte code, because compiling it takes three of the four seconds that `venv` needs.
    False: the wheels of these packages were not found, and nothing was created.
    """
    found = _run([python, "-I", "-c", _BUNDLED], doing="looking for pip").splitlines()
    if not found:
        return False
    _run(
        [python, "-I", "-m", "venv", "--without-pip", venv], doing="creating a virtual environment"
    )
    words = ["install", *_COMMON, *_LOCAL, "--no-compile", *found]
    _run_pip([python, "-I"], [venv, _packages_of(venv, python)], words, PIP_CONFIG_FILE=os.devnull)
    return True


def _packages_of(venv: str, python: str) -> str:
    asked = [python, "-I", "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
    version = _run(asked, doing="asking for the version of Python").strip()
    site = os.path.join(venv, "lib", version, "site-packages")
    real = os.path.realpath(venv)
    for each in (site, os.path.join(venv, "bin")):
        if os.path.realpath(each) != os.path.join(real, os.path.relpath(each, venv)):
            raise Refused(f"{each} leads elsewhere: remove {venv}, and a new one is made")
    if not os.path.isdir(site):
        raise Refused(f"{venv} was made for another Python than {version}: remove it")
    return site


def _run_pip(start: list[str], target: list[str], words: list[str], **env: str) -> None:
    argv = [*start, "-B", "-c", PIP_PROGRAM, *target, *words]
    _run(argv, doing="pip", **env)


def _is_done(argv: list[str]) -> bool:
    quiet = subprocess.DEVNULL
    return subprocess.run(argv, stdin=quiet, stdout=quiet, stderr=quiet).returncode == 0


def _run(argv: list[str], *, doing: str, **env: str) -> str:
    done = subprocess.run(
        argv,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    stderr = done.stderr.decode("utf-8", "replace")[-64 * 1024 :]
    if done.returncode != 0:
        output = done.stdout.decode("utf-8", "replace")[-4096:]
        raise Refused(f"{doing} failed: {stderr.strip() or output.strip()}")
    return done.stdout[-64 * 1024 :].decode("utf-8", "replace")


def _limit() -> None:
    """Stop an index from filling the disk or memory, even where no other limit applies."""
    limits = ((resource.RLIMIT_FSIZE, _LARGEST_FILE), (resource.RLIMIT_DATA, _MOST_MEMORY))
    for kind, most in limits:
        _, hard = resource.getrlimit(kind)
        given = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(kind, (given, hard))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (Refused, OSError, zipfile.BadZipFile) as error:
        sys.exit(str(error))
