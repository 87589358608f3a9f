"""Validators of others, found by their entry point: they can refuse, and never let more pass."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kakoi.audit import Event, read
from kakoi.bash_executor import CommandValidator, ConfigurationError, SecurityError, create_executor
from tests.faces.bash_executor.conftest import Create

CODE = """
from kakoi.errors import SecurityError

def no_secrets(command):
    if "secret" in command:
        raise SecurityError("nothing secret, please", hint="ask somebody else")

number = 5
"""
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a package with a validator, as pip would install it."""

    def made(value: str) -> None:
        place = tmp_path / "site"
        info = place / "plug_in-1.0.dist-info"
        info.mkdir(parents=True)
        (place / f"{value.partition(':')[0]}.py").write_text(CODE, "utf-8")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[kakoi.bash_executor.validators]\nmine = {value}\n", "utf-8"
        )
        monkeypatch.syspath_prepend(str(place))

    return made


def test_an_installed_validator_refuses_and_is_recorded(
    install: Install, create: Create, root: Path, audit_file: Path
) -> None:
    install("plug_in_that_refuses:no_secrets")
    executor = create()
    assert executor.execute("echo plain")["stdout"] == "plain\n"
    with pytest.raises(SecurityError, match="nothing secret, please") as refused:
        executor.execute("touch secret")
    assert refused.value.hint == "ask somebody else"
    assert list(root.iterdir()) == []
    last = list(read(audit_file))[-1]
    assert (last.event, last.reason) == (Event.REFUSED, "nothing secret, please")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("plug_in_without_it:nothing", "AttributeError"),
        ("plug_in_with_a_number:number", "is 5, which is not callable"),
    ],
)
def test_a_broken_validator_is_named(install: Install, root: Path, value: str, said: str) -> None:
    install(value)
    with pytest.raises(ConfigurationError, match=rf"`mine` \({value}\) .*{said}"):
        create_executor(root_dir=root)


def crashes(_command: str) -> None:
    raise ZeroDivisionError("oops")


def answers(_command: str) -> bool:
    return True


async def awaits(_command: str) -> None:
    pytest.fail("it was awaited")


@pytest.mark.parametrize("validator", [crashes, answers, awaits])
def test_a_validator_that_does_not_do_its_work_lets_nothing_pass(
    validator: Callable[[str], object],
) -> None:
    with pytest.raises(SecurityError, match=f"validator `{validator.__name__}`"):
        CommandValidator(["ls"], [], validators=[validator]).validate("ls")


def test_a_validator_is_not_asked_about_what_the_policy_refuses() -> None:
    asked: list[str] = []
    validator = CommandValidator(["ls"], [], validators=[asked.append])
    validator.validate("ls")
    with pytest.raises(SecurityError):
        validator.validate("sudo id")
    assert asked == ["ls"]
