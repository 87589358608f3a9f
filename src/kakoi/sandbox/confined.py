"""The host as a sandbox: no namespace, no engine, only what Landlock and a filter of calls keep.

Commands read the system, change the workspace and a private directory, and reach no other process:
no signal, no socket, no shared memory. What Landlock does not know stays open, and SECURITY.md says
it: what is only looked at (names, sizes, modes), and modes and times of what the user owns.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kakoi.process.stream import Launch
from kakoi.removing import remove_tree
from kakoi.runner.delivery import RunnerSettings, python_argv
from kakoi.sandbox.adapter import Limits
from kakoi.sandbox.bubblewrap_launch import (
    ENTER,
    STAGING,
    UNPRIVILEGED,
    find_python,
    harmless_etc,
)
from kakoi.sandbox.landlock import ALL_FILES, CHANGE, READ, RUN, SCOPES, USE, Rules, Walls
from kakoi.sandbox.limits import Group, rlimits_for
from kakoi.sandbox.own_folders import OwnFolder, sweep
from kakoi.sandbox.seccomp import system_call_filters
from kakoi.sandbox.workspace import Seen, look_at, within

_log = logging.getLogger(__name__)
_SYSTEM = "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /opt /nix/store".split()
_TO_SEE = "/etc/passwd /etc/group /proc /sys/devices/system/cpu /sys/kernel/mm".split()
_OF_THE_NETWORK = "/etc/resolv.conf /run/systemd/resolve/stub-resolv.conf".split()
_DEVICES = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty".split()
# The runner's alone: a command could type into the terminals of its user.
_TERMINALS = ("/dev/ptmx", "/dev/pts")
# AF_INET, AF_INET6, AF_NETLINK. Never AF_UNIX: the sockets of engines, agents and buses have paths,
# and Landlock does not know who connects to those.
_FAMILIES = {"none": (), "host": (2, 10, 16)}
_SPEC = "\0spec"
_PREFIX = "kakoi-scratch-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """A confined place on this machine: what commands may change, and what they reach.

    `scratch`: a directory of ours, with `tmp` and `home` for commands in it.
    `group`: the control group of all of it.
    """

    workspace: Seen
    scratch: Path
    network: Literal["none", "host"] = "none"
    programs: tuple[str, ...] | None = None
    group: Group | None = None

    @property
    def writable(self) -> list[str]:
        """Where commands may write."""
        return [self.workspace.path, str(self.scratch / "tmp"), str(self.scratch / "home")]

    def settings(self, limits: Limits, *, as_root: bool) -> RunnerSettings:
        """What the runner is told. The number of processes is for the group alone: as an rlimit it
        would count all those of the user."""
        return RunnerSettings(
            cwd=self.workspace.path,
            walls=self.walls(as_root=as_root).handed_over(),
            **(self.group.handed_over() if self.group else {}),
            rlimits=rlimits_for(limits, self.group.kept if self.group else ()),
        )

    def walls(self, *, as_root: bool) -> Walls:
        """All that is kept. `as_root`: the workspace is lent, and a setuid file would be root's."""
        calls = system_call_filters(
            deny_setuid=as_root, families=_FAMILIES[self.network], among_others=True
        )
        ports = () if self.network == "none" else None
        paths = tuple(self._paths())
        mine = tuple((path, USE | READ) for path in _TERMINALS)
        rules = [
            Rules(handled=ALL_FILES, paths=each, bind=ports, connect=ports, scopes=SCOPES)
            for each in ((*paths, *mine), paths)
        ]
        return Walls(
            runner=rules[0],
            commands=rules[1],
            runner_filter=calls,
            programs=self.programs,
            writable=self.writable,
            required=True,
        )

    def _readable(self, search_path: str) -> str:
        """Without folders that commands may not read. Links in them can be followed all the same:
        the `python3` of a virtual environment would start, and fail."""
        folders = (*_SYSTEM, os.path.realpath(sys.base_prefix), *self.writable)
        return os.pathsep.join(
            each
            for each in search_path.split(os.pathsep)
            if any(within(os.path.realpath(each), folder) for folder in folders)
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
        own = {"TMPDIR": str(self.scratch / "tmp"), "HOME": str(self.scratch / "home")}
        # Git complains of a system's file that it may not read.
        given = {**env, **own, "GIT_CONFIG_NOSYSTEM": "1"}
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
        argv = [sys.executable, "-I", "-S", STAGING, _SPEC, *python_argv(python)]
        spec = {_SPEC: os.fsencode(self._spec())}
        return Launch(argv=argv, env=given, files=spec, descriptors=handed, kept=True)

    def _spec(self) -> str:
        """What staging.py is to do: show each writable directory as the user's, where it is."""
        uid, gid = self.workspace.uid or UNPRIVILEGED, self.workspace.gid or UNPRIVILEGED
        fields = [str(uid), str(gid), str(self.scratch / "place")]
        for path in self.writable:
            seen = look_at(path, what="a directory for commands")
            known = f"{seen.device} {seen.inode} {seen.uid} {seen.gid}"
            fields += [path, known, path, "write" if self.programs is None else "data"]
        return "\0".join([*fields, *(["\n".join(self._groups)] if self._groups else [])])

    @property
    def _groups(self) -> list[str]:
        return self.group.entries if self.group else []


class Scratch:
    """A private directory for commands, until it is removed; what the killed left is removed first.

    `folder`: with `tmp`, `home` and `place` in it.
    """

    def __init__(self) -> None:
        sweep(_PREFIX, remove_tree)
        self._own = OwnFolder(_PREFIX)
        self.folder = Path(os.path.realpath(self._own.path))
        for name in ("tmp", "home", "place"):
            (self.folder / name).mkdir(mode=0o700)
        if os.geteuid() == 0:
            self.folder.chmod(0o711)  # Not root any more, commands have to get through.

    def remove(self) -> None:
        """Take it away, whatever modes commands have left in it."""
        try:
            remove_tree(self.folder)
        except OSError as error:
            _log.warning("%s could not be removed: %s", self.folder, error)
        self._own.let_go()
