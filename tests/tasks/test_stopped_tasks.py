"""What happens in the middle of a task, as `kakoi agent run` and its users see it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agents.openai_server import OpenAIServer, call, last_tool_text
from tests.cli.terminals import PATIENCE_S
from tests.engine import containers
from tests.tasks.hub import ISSUE, Hub
from tests.tasks.test_handler_doors import DONE, MEND, Gated, runner_for
from tests.tasks.test_handler_doors import hub as hub

SLOW = call("execute_command", command="sleep 600", timeout_ms=300)


@pytest.mark.requirement("A-057", "A-087", "B-055")
@pytest.mark.slow("a whole task")
def test_a_command_times_out_and_then_somebody_closes_the_issue(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    gated, heard = Gated(), []

    def hear(body: dict[str, Any]) -> Any:
        heard.append(last_tool_text(body))
        return gated(body)

    with OpenAIServer(SLOW, hear, MEND, DONE).listening() as model:
        run = runner_for(hub, tmp_path, owner, model)
        running = run.start("run", hub.issue, "--json")
        try:
            assert gated.reached.wait(PATIENCE_S)
            hub.issues[ISSUE]["state"] = "closed"
            gated.go.set()
            out, err = running.communicate(timeout=PATIENCE_S)
        finally:
            gated.go.set()
            running.kill()
    assert "timed_out" in heard[0]
    assert "the limit was 0.3 s" in heard[0]
    told = json.loads(out.splitlines()[-1])
    assert told["stage"] == hub.stage() == "stopped", err
    # The answer that came after the end was not carried out.
    assert len(model.requests) == 2
    assert sorted(hub.branches()) == ["feature", "main"]
    assert hub.new_pulls() == []
    assert containers(owner) == []
