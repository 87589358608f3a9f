"""Installs a Python package into a virtual environment of a project, and runs nothing of either.

Runs inside of the sandbox, `python3 -I - VENV WORK PACKAGE` with this text as its input, where WORK
is an empty folder. Standard library only, Python >= 3.8.

A project can put anything into its environment: another pip, settings that name another index,
modules that are run when Python starts. So a pip of our own downloads the package and all that it
depends on, as wheels, and puts them where they belong. No program is started by it: installing a
source distribution would run its code. On success it prints a name and a version on each line.
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
_COMMON = ["--isolated", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
# pip, which must start nothing. With a folder of packages, it works for the environment that these
# belong to: it can list and replace them, but imports none.
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
    """Why nothing was installed."""


def main(venv: str, work: str, package: str) -> None:
    """Install `package` and say what came with it."""
    _limit()
    python = _python_for(venv)
    tool = _python_with_pip(python, venv, work)
    site = _packages_of(venv, python)
    wheels = os.path.join(work, "wheels")
    download = ["--progress-bar", "off", "--only-binary", ":all:", "--dest", wheels, package]
    _run_pip(tool, ["", ""], ["download", *_COMMON, *download])
    files = [os.path.join(wheels, each) for each in sorted(os.listdir(wheels))]
    came = [_name_and_version(each) for each in files]
    local = ["--no-index", "--no-deps", "--force-reinstall", "--no-warn-script-location"]
    _run_pip(tool, [venv, site], ["install", *_COMMON, *local, *files], PIP_CONFIG_FILE=os.devnull)
    sys.stdout.writelines(f"{name} {version}\n" for name, version in came)


def _name_and_version(wheel: str) -> tuple[str, str]:
    """As its file is called; refused if it says that it is another package."""
    called = os.path.basename(wheel).split("-")
    if not wheel.endswith(".whl") or len(called) < _PARTS:
        raise Refused(f"{os.path.basename(wheel)} is not a wheel")
    with zipfile.ZipFile(wheel) as archive:
        inside = [each for each in archive.namelist() if _METADATA.fullmatch(each)]
        if len(inside) != 1:
            raise Refused(f"{os.path.basename(wheel)} does not say what it is")
        with archive.open(inside[0]) as file:
            about = email.message_from_bytes(file.read(_MOST_METADATA))
    names = [re.sub(r"[-_.]+", "-", str(each)).lower() for each in (called[0], about["Name"])]
    if names[0] != names[1]:
        raise Refused(f"{os.path.basename(wheel)} says that it is another package")
    return names[0], called[1]


def _python_for(venv: str) -> str:
    """The Python that an environment was made with, if the project has not brought it along."""
    if not os.path.lexists(venv):
        return sys.executable
    if os.path.islink(venv) or not os.path.isfile(os.path.join(venv, "pyvenv.cfg")):
        raise Refused(f"{venv} is not a virtual environment: remove it, and a new one is made")
    found = os.path.realpath(os.path.join(venv, "bin", "python"))
    if found == os.path.realpath(sys.executable):
        return sys.executable
    is_ours = os.path.isfile(found) and not os.access(found, os.W_OK)
    if not is_ours or not re.fullmatch(r"python[0-9.]*", os.path.basename(found)):
        raise Refused(f"{venv} was made with a Python that is not here: remove it")
    return found


def _python_with_pip(python: str, venv: str, work: str) -> str:
    """A Python with a pip that no project has had its hands on."""
    if not os.path.lexists(venv):
        made = venv  # It is new, and so still as we made it.
    elif _is_done([python, "-I", "-c", "import pip"]):
        return python
    else:
        made = os.path.join(work, "tool")
    _run([python, "-I", "-m", "venv", made], doing="making a virtual environment")
    return os.path.join(made, "bin", "python")


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


def _run_pip(tool: str, place: list[str], words: list[str], **env: str) -> None:
    argv = [tool, "-I", "-B", "-c", PIP_PROGRAM, *place, *words]
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
    said = done.stderr.decode("utf-8", "replace")[-64 * 1024 :]
    if done.returncode != 0:
        output = done.stdout.decode("utf-8", "replace")[-4096:]
        raise Refused(f"{doing} failed: {said.strip() or output.strip()}")
    return done.stdout[-64 * 1024 :].decode("utf-8", "replace")


def _limit() -> None:
    """No answer of an index fills the disk or the memory, also where there is no other limit."""
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
