"""One value that can be set: what it is, what it means, and where it is read from."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from kakoi.config.kinds import Kind

# What the file of a project, written by strangers, may do: nothing; choose freely; only lower a
# number; only add to a list that tightens; only have commands reach less (narrowing.py).
InProject = Literal["nothing", "choose", "lower", "add", "narrow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value. `also` are its paths in the files of the specs."""

    kind: Kind
    doc: str
    env: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    project: InProject = "nothing"


def described(
    default: Any,
    kind: Kind,
    doc: str,
    *,
    env: str = "",
    also: str = "",
    project: InProject = "nothing",
) -> Any:
    setting = Setting(
        kind=kind, doc=doc, env=tuple(env.split()), also=tuple(also.split()), project=project
    )
    return dataclasses.field(default=default, metadata={"setting": setting})
