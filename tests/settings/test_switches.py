"""Every setting does something: two values of it, and what a user sees with each.

The values are written into the settings file, under the name of the original design's file where it
has one, and seen by a command that a user types, or in Python as the documents show it. So a
setting whose reader is removed fails here, and so does a new setting without a switch.
"""

import ast
from pathlib import Path

import pytest

from kakoi.settings.model import settings_table
from tests.settings import command_switches, task_switches
from tests.settings.world import Switch, World

ALL = [*command_switches.SWITCHES, *task_switches.SWITCHES]
_AGAIN = pytest.mark.extended("repetition: tests/tasks and tests/agents prove what these do")
# These take too long to be seen twice: one test with the value in a user's file, which fails with
# the default, is enough.
ELSEWHERE = {
    "tasks.dockerfile": (
        "test_project.py",
        "test_a_project_s_dockerfile_is_built_once_from_its_files_alone",
    ),
    "tasks.pool_size": (
        "test_handler_doors.py",
        "test_a_consumer_that_goes_on_has_an_environment_ready_for_its_first_task",
    ),
    "tasks.keep_seconds": (
        "test_handler_doors.py",
        "test_a_task_of_a_killed_consumer_is_gone_on_with_by_another",
    ),
    "tasks.cleanup.interval_hours": (
        "test_handler_doors.py",
        "test_a_producer_that_goes_on_sweeps_again_and_again",
    ),
}


@pytest.mark.parametrize(
    "switch",
    [
        *(pytest.param(each, id=each.path) for each in command_switches.SWITCHES),
        *(pytest.param(each, id=each.path, marks=_AGAIN) for each in task_switches.SWITCHES),
    ],
)
def test_two_values_of_a_setting_show_a_difference(switch: Switch, tmp_path: Path) -> None:
    for number, value in enumerate(switch.values):
        values = {**switch.base, switch.path: value}
        world = World(tmp_path / str(number), values, switch.env)
        assert switch.see(world) == switch.seen[number], value
    assert switch.seen[0] != switch.seen[1]


def test_every_setting_has_a_switch_or_a_test_elsewhere() -> None:
    paths = [switch.path for switch in ALL]
    assert sorted([*paths, *ELSEWHERE]) == sorted(settings_table())


@pytest.mark.parametrize("path", ELSEWHERE)
def test_the_test_elsewhere_sets_its_setting(path: str) -> None:
    file, name = ELSEWHERE[path]
    tree = ast.parse((Path(__file__).parents[1] / "tasks" / file).read_text(encoding="utf-8"))
    bodies = [
        ast.unparse(each)
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name
    ]
    assert len(bodies) == 1
    assert path.rpartition(".")[2] in bodies[0]
