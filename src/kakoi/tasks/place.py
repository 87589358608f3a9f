"""Environment: the container of one task, the gate to it, and what it is doing."""

from dataclasses import dataclass, field
from datetime import datetime

from kakoi.gate import Gate
from kakoi.sandbox.docker import DockerAdapter
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.lifecycle import Lifecycle
from kakoi.tasks.making import Made
from kakoi.tasks.task import container_name
from kakoi.tasks.values import ContainerInfo, Installed


@dataclass(eq=False, slots=True)
class Environment:
    """One task's. Commands of its agent go through `gate` and nowhere else."""

    task_uuid: str
    made: Made
    gate: Gate
    created_at: datetime
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    container_id: str = ""
    installed: tuple[Installed, ...] = ()

    @property
    def adapter(self) -> DockerAdapter:
        """The way into its container."""
        return self.made.adapter

    @property
    def name(self) -> str:
        """The name of its container."""
        return container_name(self.task_uuid)

    def info(self) -> ContainerInfo:
        """What is told about it."""
        return ContainerInfo(
            container_id=self.container_id,
            task_uuid=self.task_uuid,
            workspace_path=PROJECT,
            created_at=self.created_at,
            status=self.lifecycle.status,
            name=self.name,
            installed=self.installed,
        )

    async def let_go(self) -> None:
        """Close the way in. The container stays as it is, with its jobs."""
        await self.gate.close()
        await self.made.close()
