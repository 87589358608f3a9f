"""Labels say how far a task is, on the tracker itself, where everybody can see it."""

from dataclasses import dataclass, fields
from typing import Literal

from kakoi.errors import ConfigurationError

Stage = Literal["waiting", "processing", "done", "error", "paused", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The label of each stage. A task has at most one of them; a person gives it the first."""

    waiting: str = "coding agent"
    processing: str = "coding agent processing"
    done: str = "coding agent done"
    error: str = "coding agent error"
    paused: str = "coding agent paused"
    stopped: str = "coding agent stopped"

    def __post_init__(self) -> None:
        names = [str(getattr(self, each.name)) for each in fields(self)]
        if len({name.casefold() for name in names}) < len(names):
            raise ConfigurationError("two stages of a task have the same label")
        for name in names:
            # GitLab separates labels by commas.
            if not name.strip() or name != name.strip() or "," in name or len(name) > 50:
                raise ConfigurationError(
                    f"a label is {name!r:.80}; it must have 1 to 50 characters, and no comma"
                )

    def of(self, stage: Stage) -> str:
        """The label of a stage."""
        return str(getattr(self, stage))

    def stage_of(self, labels: tuple[str, ...]) -> Stage | None:
        """How far a task with these labels is; the waiting one counts most: somebody wants it."""
        given = {label.casefold() for label in labels}
        stages: tuple[Stage, ...]
        stages = ("waiting", "processing", "paused", "stopped", "error", "done")
        return next((each for each in stages if self.of(each).casefold() in given), None)

    def change(self, labels: tuple[str, ...], stage: Stage) -> tuple[list[str], list[str]]:
        """Which labels a task with these needs besides, and which ones it must lose."""
        ours = {str(getattr(self, each.name)).casefold() for each in fields(self)}
        wanted = self.of(stage)
        present = any(label.casefold() == wanted.casefold() for label in labels)
        old = [x for x in labels if x.casefold() in ours and x.casefold() != wanted.casefold()]
        return ([] if present else [wanted]), old
