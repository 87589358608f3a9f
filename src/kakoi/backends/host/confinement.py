"""The host as a sandbox: no namespace, no engine, only Landlock and a system call filter.

Commands read the system, change the workspace and a private directory, and reach no other process:
no signal, no socket, no shared memory. What Landlock does not cover stays open, as SECURITY.md
says: file metadata (names, sizes, modes), and the modes and times of files that the user owns.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from kakoi._support.files import remove_tree
from kakoi._support.late import dataclass
from kakoi.backends.adapter import Limits
from kakoi.backends.bubblewrap.arguments import (
    ENTER,
    STAGING,
    UNPRIVILEGED,
    find_python,
    harmless_etc,
)
from kakoi.backends.landlock import (
    ALL_FILES,
    CHANGE,
    READ,
    RUN,
    SCOPES,
    USE,
    LandlockRules,
    Restrictions,
)
from kakoi.backends.limits import ControlGroup, rlimits_for
from kakoi.backends.locked_folders import LockedFolder, sweep
from kakoi.backends.seccomp import system_call_filters
from kakoi.backends.workspace import FileIdentity, identify, is_within
from kakoi.channel.delivery import RunnerSettings, python_argv
from kakoi.process.keeper_client import program_argv
from kakoi.process.stream import Launch

_log = logging.getLogger(__name__)
_SYSTEM = "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /opt /nix/store".split()
_TO_SEE = "/etc/passwd /etc/group /proc /sys/devices/system/cpu /sys/kernel/mm".split()
_OF_THE_NETWORK = "/etc/resolv.conf /run/systemd/resolve/stub-resolv.conf".split()
_DEVICES = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty".split()
# For the runner only: a command could type into the terminals of its user.
_TERMINALS = ("/dev/ptmx", "/dev/pts")
# AF_INET, AF_INET6, AF_NETLINK. Never AF_UNIX: the sockets of engines, agents and buses have paths,
# and Landlock does not restrict connections to those.
_FAMILIES = {"none": (), "host": (2, 10, 16)}
_SPEC = "\0spec"
_PREFIX = "kakoi-scratch-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How commands on this machine are confined: what they can change and reach.

    `scratch`: a directory of ours, with `tmp` and `home` for commands in it.
    `group`: the control group of all of it.
    """

    workspace: FileIdentity
    scratch: Path
    network: Literal["none", "host"] = "none"
    programs: tuple[str, ...] | None = None
    group: ControlGroup | None = None

    @property
    def writable(self) -> list[str]:
        """Where commands can write."""
        return [self.workspace.path, str(self.scratch / "tmp"), str(self.scratch / "home")]

    def settings(self, limits: Limits, *, as_root: bool) -> RunnerSettings:
        """The settings of the runner. Only the group limits the number of processes: an rlimit
        would count all processes of the user."""
        return RunnerSettings(
            cwd=self.workspace.path,
            restrictions=self.restrictions(as_root=as_root).for_runner(),
            **(self.group.for_runner() if self.group else {}),
            rlimits=rlimits_for(limits, self.group.kept if self.group else ()),
        )

    def restrictions(self, *, as_root: bool) -> Restrictions:
        """All restrictions. `as_root`: the workspace is lent; setuid files would be root's."""
        calls = system_call_filters(
            deny_setuid=as_root, families=_FAMILIES[self.network], among_others=True
        )
        ports = () if self.network == "none" else None
        paths = tuple(self._paths())
        mine = tuple((path, USE | READ) for path in _TERMINALS)
        rules = [
            LandlockRules(handled=ALL_FILES, paths=each, bind=ports, connect=ports, scopes=SCOPES)
            for each in ((*paths, *mine), paths)
        ]
        return Restrictions(
            runner=rules[0],
            commands=rules[1],
            runner_filter=calls,
            programs=self.programs,
            writable=self.writable,
            required=True,
        )

    def _readable(self, search_path: str) -> str:
        """The search path without folders that commands cannot read. Links in those could still be
        followed: the `python3` of a virtual environment would start, and fail."""
        folders = (*_SYSTEM, os.path.realpath(sys.base_prefix), *self.writable)
        return os.pathsep.join(
            each
            for each in search_path.split(os.pathsep)
            if any(is_within(os.path.realpath(each), folder) for folder in folders)
        )

    def _paths(self) -> Iterator[tuple[str, int]]:
        for path in (*_SYSTEM, os.path.realpath(sys.base_prefix)):
            yield path, RUN
        seen = [*harmless_etc(), *_TO_SEE, *(_OF_THE_NETWORK if self.network == "host" else ())]
        if self.group and self.group.oom_counter and not self.group.jobs:
            seen.append(self.group.oom_counter)
        for path in seen:
            yield path, READ
        for path in _DEVICES:
            yield path, USE
        for path in self.writable:
            yield path, CHANGE

    def launch(self, env: Mapping[str, str], *, as_root: bool) -> Launch:
        """How to start the runner; root becomes the owner of the workspace, or nobody."""
        # Git fails on a system file that it cannot read.
        given = {**env, **scratch_variables(self.scratch), "GIT_CONFIG_NOSYSTEM": "1"}
        if "PATH" in env:
            given["PATH"] = self._readable(env["PATH"])
        python, _home = find_python()
        handed = self.group.descriptors if self.group else ()
        if not as_root:
            enter = ["/bin/sh", "-c", ENTER, "sh", *self._groups, "--"] if self._groups else []
            return Launch(
                argv=[*enter, *python_argv(python)], env=given, descriptors=handed, kept=True
            )
        given |= {"USER": "agent", "LOGNAME": "agent"}
        argv = program_argv(STAGING, _SPEC, *python_argv(python))
        spec = {_SPEC: os.fsencode(self._spec())}
        return Launch(argv=argv, env=given, files=spec, descriptors=handed, kept=True)

    def _spec(self) -> str:
        """The input of mount_stage.py: show each writable directory as the user's own, in place."""
        uid, gid = self.workspace.uid or UNPRIVILEGED, self.workspace.gid or UNPRIVILEGED
        fields = [str(uid), str(gid), str(self.scratch / "mounts")]
        for path in self.writable:
            seen = identify(path, what="a directory for commands")
            known = f"{seen.device} {seen.inode} {seen.uid} {seen.gid}"
            fields += [path, known, path, "write" if self.programs is None else "data"]
        return "\0".join([*fields, *(["\n".join(self._groups)] if self._groups else [])])

    @property
    def _groups(self) -> list[str]:
        return self.group.entries if self.group else []


def scratch_variables(folder: Path) -> dict[str, str]:
    """The variables that lead commands to the private directory in `folder`."""
    return {"TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home")}


class ScratchFolder:
    """A private directory for commands; those of killed processes are removed first.

    `folder`: with `tmp`, `home` and `mounts` in it.
    """

    def __init__(self) -> None:
        sweep(_PREFIX, remove_tree)
        self._own = LockedFolder(_PREFIX)
        self.folder = Path(os.path.realpath(self._own.path))
        for name in ("tmp", "home", "mounts"):
            (self.folder / name).mkdir(mode=0o700)
        if os.geteuid() == 0:
            self.folder.chmod(0o711)  # Commands are not root, and have to get through.

    @property
    def variables(self) -> dict[str, str]:
        """The variables that lead commands there."""
        return scratch_variables(self.folder)

    def remove(self) -> None:
        """Remove it, whatever modes commands have left in it."""
        try:
            remove_tree(self.folder)
        except OSError as error:
            _log.warning("%s could not be removed: %s", self.folder, error)
        self._own.release()
