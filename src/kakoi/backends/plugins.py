"""Backends of other packages, found by their entry points in the group `kakoi.backends`.

An entry point names a function from a `BackendContext` (select.py) to a `SandboxAdapter`. Looking
for entry points takes a moment, so it happens only for a name that is not built in.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from kakoi._support.late import dataclass
from kakoi.errors import ConfigurationError, KakoiError

if TYPE_CHECKING:
    from kakoi.backends.adapter import SandboxAdapter

GROUP: Final = "kakoi.backends"
# Names that only kakoi's own package can provide.
_OWN: Final = frozenset({"container-use"})
_MEMBERS: Final = """name availability is_available run execute channel shell limit_report
    cleanup""".split()


@dataclass(frozen=True, slots=True)
class BackendPlugin:
    """A function of another package that makes backends. `package`: the one that provides it."""

    name: str
    package: str
    function: Callable[..., "SandboxAdapter"]

    def make(self, context: object) -> "SandboxAdapter":
        """Make a backend. Raises ConfigurationError if the plug-in is broken."""
        try:
            adapter = self.function(context)
        except KakoiError:
            raise
        except Exception as error:
            raise _broken(self.name, self.package, f"{type(error).__name__}: {error}") from error
        if missing := [each for each in _MEMBERS if not hasattr(type(adapter), each)]:
            why = f"its {type(adapter).__name__} has no {', '.join(missing)}"
            raise _broken(self.name, self.package, why)
        return adapter


def plugin_names() -> list[str]:
    """The names of the backends that installed packages provide."""
    return sorted({entry.name for entry in _entries()})


def load_plugin(name: str) -> BackendPlugin:
    """Load the plug-in of this name.

    Raises ConfigurationError if no package provides it, if two do, or if it is broken.
    """
    entries = [entry for entry in _entries() if entry.name == name]
    if not entries:
        installed = ", ".join(plugin_names())
        raise ConfigurationError(
            f"no installed package provides the sandbox `{name}`",
            hint=f"installed: {installed}" if installed else "install its package",
        )
    if len(entries) > 1:
        packages = " and ".join(sorted(map(_package, entries)))
        raise ConfigurationError(
            f"the sandbox `{name}` is ambiguous: the packages {packages} provide it",
            hint="uninstall all but one of them",
        )
    entry, package = entries[0], _package(entries[0])
    try:
        function: object = entry.load()
    except Exception as error:  # Anything can happen while another package is imported.
        why = f"`{entry.value}` cannot be loaded: {type(error).__name__}: {error}"
        raise _broken(name, package, why) from error
    if not callable(function):
        raise _broken(name, package, f"`{entry.value}` is not a function")
    return BackendPlugin(name, package, function)


def _entries() -> list[EntryPoint]:
    return [
        entry
        for entry in entry_points(group=GROUP)
        if entry.name not in _OWN or _package(entry) == "kakoi"
    ]


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "(unknown)"


def _broken(name: str, package: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the sandbox `{name}` of the package `{package}` is broken: {why}",
        details={"sandbox": name, "package": package},
        hint=f"reinstall it (pip install --force-reinstall {package}), or use another sandbox",
    )
