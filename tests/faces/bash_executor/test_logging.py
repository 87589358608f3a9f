"""The log: at the level and in the format of the configuration, beside what the application does."""

import logging

import pytest

from kakoi.bash_executor import SecurityError
from tests.faces.bash_executor.conftest import Create

NAME = "kakoi.bash_executor"


@pytest.mark.requirement("C-029")
def test_a_format_puts_lines_on_standard_error(
    create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = create(logging={"format": "[%(levelname)s %(name)s] %(message)s"})
    executor.execute("echo one\necho two")
    line = capsys.readouterr().err
    assert line.startswith(f"[INFO {NAME}] ran 'echo one\\necho two' in ")
    assert line.endswith(": exit 0\n")


@pytest.mark.requirement("C-029")
def test_a_level_holds_for_its_executor(create: Create, caplog: pytest.LogCaptureFixture) -> None:
    quiet, talkative = create(logging={"level": "warning"}), create()
    quiet.execute("echo quiet")
    with pytest.raises(SecurityError):
        quiet.execute("sudo id")
    talkative.execute("echo talkative")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_the_level_of_the_application_holds_too(
    create: Create, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger=NAME):
        create().execute("echo a")
    assert caplog.records == []


def test_the_loggers_of_the_application_are_left_alone(
    create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    def state() -> list[object]:
        loggers = [logging.getLogger(), logging.getLogger("kakoi"), logging.getLogger(NAME)]
        return [(each.level, list(each.handlers), each.propagate) for each in loggers]

    before = state()
    create(logging={"format": "%(message)s", "level": "DEBUG"}).execute("echo a")
    assert state() == before
    assert capsys.readouterr().err.count("\n") == 1
