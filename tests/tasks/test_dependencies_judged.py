"""The installation of a project's dependencies: judged and recorded like everything else."""

from pathlib import Path

import pytest

from kakoi.audit import Event, read
from kakoi.policy.blocked_commands import with_blocked
from kakoi.policy.profiles import load_policy, tightened
from kakoi.settings.model import PolicySettings, Settings
from kakoi.tasks.from_settings import environment_options
from tests.tasks.conftest import Make
from tests.tasks.hosting import a_repository, a_task

pytestmark = pytest.mark.anyio

ASKS = {
    "id": "asks-about-go",
    "verdict": "ask",
    "commands": ["go mod"],
    "reason": "somebody has to approve this",
}


async def test_each_step_is_recorded_and_a_policy_stops_it_with_its_reason(
    make: Make, tmp_path: Path
) -> None:
    files = {"requirements.txt": "", "package.json": "{}", "go.mod": "module x"}
    policy = with_blocked(load_policy(roots=["/workspace"]), ["npm install"], origin="my settings")
    policy = tightened(policy, rules=[ASKS], origin="my settings")
    manager = make(policy=policy, network="none")
    task = a_task(a_repository(tmp_path / "p", files))
    info = await manager.prepare(task)
    assert info.status == "ready"
    node = info.installed[0]
    assert not node.ok
    assert "package.json is not installed: the policy refuses `npm install`" in node.output
    assert "on the list of blocked commands" in node.output
    records = [each for each in read(tmp_path / "audit.jsonl") if "prepare" not in each.command]
    assert {each.task for each in records} == {task.uuid}
    assert [(each.command, each.event) for each in records if each.command] == [
        ("npm install", Event.REFUSED),
        ("pip install -r requirements.txt", Event.STARTED),
        ("go mod download", Event.ASKED),
        ("go mod download", Event.APPROVED),
        ("go mod download", Event.STARTED),
    ]
    begun = {each.id for each in records if each.event is Event.STARTED}
    assert begun <= {each.id for each in records if each.event is Event.ENDED}
    reasons = [each.reason for each in records if each.event is Event.APPROVED]
    assert reasons == ["approved by the setting tasks.clone.auto_install_deps"]


def test_packages_of_the_list_are_installed_under_the_policy_without_that_list() -> None:
    options = environment_options(Settings(policy=PolicySettings(packages="allowlist")))
    assert options.lists is not None
    assert options.install_policy is not None
    rules = {rule.id for rule in options.policy.rules} - {
        rule.id for rule in options.install_policy.rules
    }
    assert "unlisted-packages" in rules
