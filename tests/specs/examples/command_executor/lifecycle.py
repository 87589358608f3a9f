# The class diagram of section 11.1 and the sequence of 12.1, as a program.
# Changed: the manager is made from the settings; the methods are coroutines; a local repository is
# cloned instead of one of GitHub.
import asyncio
import sys

from kakoi.tasks import ContainerInfo, Task, environment_manager


async def main(repository: str) -> None:
    task = Task(uuid="0190a1b2-example", repository=repository)
    async with environment_manager() as manager:
        container: ContainerInfo = await manager.prepare(task)
        print(container.task_uuid, container.workspace_path, container.status)
        assert container.container_id
        assert container.created_at.tzinfo
        for command in ("pwd", "ls -A", "cat missing"):
            result = await manager.execute(container.container_id, command)
            print(result.exit_code, result.stdout.strip(), type(result.stderr).__name__)
            assert result.duration_ms >= 0
        await manager.cleanup(task.uuid)
        await manager.cleanup_stale_containers()


asyncio.run(main(sys.argv[1]))
