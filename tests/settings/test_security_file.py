"""security.toml: where it is read, and which files only look as if they were."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError
from kakoi.settings.shell_security import find_security, load_security

OFF = "[shell]\nenabled = false\n"
# In the order of precedence.
READ = (".config/kakoi/security.toml", ".kakoi/security.toml", ".kagura/security.toml")
NOT_READ = (
    "security.toml",
    ".config/security.toml",
    ".config/kagura/security.toml",
    ".config/kakoi/security.yaml",
    ".kagura/security.yml",
    "work/security.toml",
    "work/.kakoi/security.toml",
    "work/.kagura/security.toml",
)
PROGRAM = """
import asyncio
from kakoi.builtin import shell
for _ in range(2):
    try:
        print(asyncio.run(shell("echo ran")), end="")
    except Exception as error:
        print(type(error).__name__, error, error.hint)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def write(path: Path, text: str = OFF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **more}


def use_in_a_program(home: Path, **more: str) -> tuple[str, str]:
    """Use `kakoi.builtin` twice in a program of its own; return its stdout and stderr."""
    variables: Mapping[str, str] = {
        "PATH": os.environ["PATH"],
        "KAKOI_AUDIT_FILE": str(home / "audit.jsonl"),
        **environ(home, **more),
    }
    argv = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        argv, cwd=home / "work", env=variables, capture_output=True, text=True, timeout=120
    )
    return done.stdout, done.stderr


@pytest.mark.requirement("D-039", "D-040")
@pytest.mark.parametrize("place", READ)
def test_each_place_is_read_by_the_program_of_the_user(home: Path, place: str) -> None:
    file = write(home / place)
    out, err = use_in_a_program(home)
    assert out.count("shell execution is turned off") == 2
    assert str(file) in out
    assert err == ""


@pytest.mark.requirement("D-042")
def test_the_features_of_a_config_file_turn_the_shell_off(home: Path) -> None:
    file = home / ".kagura" / "config.toml"
    write(file, '[model]\nname = "x"\n\n[features]\nother = 7\nshell = false\n')
    out, err = use_in_a_program(home)
    assert out.count("shell execution is turned off") == 2
    assert str(file) in out
    assert err == ""
    write(file, "[features]\nshell = true\n")
    assert load_security(environ(home)).enabled
    for place in READ:
        other = write((home / place).with_name("config.toml"), "[features]\nshell = false\n")
        assert load_security(environ(home)).off_by == str(other)
        other.unlink()
    write(file, '[features]\nshell = "no"\n')
    with pytest.raises(ConfigurationError, match=r"features\.shell is 'no'"):
        load_security(environ(home))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[features]\nshel = false\n", "features.shel"),
        ("[features]\nShell = false\n", "features.Shell"),
        ("[feature]\nshell = false\n", "feature.shell"),
    ],
)
def test_a_feature_that_is_nearly_the_shell_is_reported(home: Path, text: str, meant: str) -> None:
    file = write(home / ".kagura" / "config.toml", text)
    out, err = use_in_a_program(home)
    assert out == "ran\nran\n"
    assert err == f"{file}: `{meant}` is not read; did you mean `features.shell`?\n"


def test_features_of_another_program_are_no_reason_to_warn(home: Path) -> None:
    text = "[features]\nsearch = true\nskills = true\nshell = true\n[tools]\nshell = false\n"
    write(home / ".kagura" / "config.toml", text)
    assert use_in_a_program(home) == ("ran\nran\n", "")


@pytest.mark.requirement("D-039")
@pytest.mark.parametrize("folder", [".", "projects", "./projects", "../x"])
def test_a_relative_folder_would_mean_another_one_everywhere_and_is_refused(
    home: Path, folder: str
) -> None:
    write(home / READ[2], f'[shell]\nallowed_directories = ["{folder}"]\n')
    out, _ = use_in_a_program(home)
    assert out.count("shell.allowed_directories is ") == 2
    assert out.count("it must be a folder whose path begins with `/` or `~`") == 2
    assert "ran" not in out


def test_the_first_place_wins_and_the_others_are_named(home: Path) -> None:
    found = [write(home / place) for place in READ]
    files = find_security(environ(home), home / "work")
    assert (files.used, files.unread) == (found[0], tuple(found[1:]))
    found[0].unlink()
    files = find_security(environ(home), home / "work")
    assert (files.used, files.unread) == (found[1], (found[2],))
    elsewhere = write(home / "xdg" / "kakoi" / "security.toml")
    assert find_security(environ(home, XDG_CONFIG_HOME=str(home / "xdg"))).used == elsewhere


@pytest.mark.requirement("D-039")
@pytest.mark.parametrize("place", NOT_READ)
def test_the_first_use_warns_once_about_a_file_that_is_not_read(home: Path, place: str) -> None:
    file = write(home / place, OFF if place.endswith(".toml") else "shell: {enabled: false}\n")
    out, err = use_in_a_program(home)
    assert out == "ran\nran\n"
    assert err.count("is not read: no security.toml is in force") == 1
    assert f"{file} is not read" in err
    assert f"move its content to {home / READ[0]}, or remove it" in err


@pytest.mark.parametrize("folder", [".config/kakoi", ".kakoi", ".kagura"])
@pytest.mark.parametrize(
    "name",
    ["Security.toml", "SECURITY.TOML", "security.tml", "security.toml.txt", ".security.toml"],
)
def test_a_name_that_is_nearly_right_is_a_file_that_is_not_read(
    home: Path, folder: str, name: str
) -> None:
    file = write(home / folder / name)
    assert find_security(environ(home), home / "work").unread == (file,)
    right = write(home / folder / "security.toml")
    files = find_security(environ(home), home / "work")
    assert (files.used, files.unread) == (right, (file,))


def test_the_first_use_warns_about_the_second_of_two_files(home: Path) -> None:
    first, second = write(home / READ[1], "[shell]\n"), write(home / READ[2])
    out, err = use_in_a_program(home)
    assert out == "ran\nran\n"
    assert f"{second} is not read: {first} is read instead" in err


def test_a_file_of_another_program_and_a_link_to_the_same_file_are_no_reason_to_warn(
    home: Path,
) -> None:
    write(home / "work" / "security.toml", "[tls]\nshell_like = true\n")
    write(home / READ[1], "[shell]\n")
    (home / ".kagura").symlink_to(home / ".kakoi")
    assert find_security(environ(home), home / "work").unread == ()


def test_a_file_named_by_the_variable_is_the_only_one_and_must_exist(home: Path) -> None:
    usual, named = write(home / READ[0]), write(home / "mine.toml", "[shell]\ntimeout = 7\n")
    variables = environ(home, KAKOI_SECURITY_FILE=str(named))
    assert load_security(variables).timeout_s == 7
    assert find_security(variables, home / "work").unread == (usual,)
    assert use_in_a_program(home, KAKOI_SECURITY_FILE=str(named)) == ("ran\nran\n", "")
    named.unlink()
    with pytest.raises(ConfigurationError, match=r"KAKOI_SECURITY_FILE is .* does not exist"):
        load_security(variables)


def test_a_link_to_nothing_is_an_error_and_not_a_missing_file(home: Path) -> None:
    path = home / READ[2]
    path.parent.mkdir()
    path.symlink_to(home / "gone.toml")
    with pytest.raises(ConfigurationError, match="is a link to a file that does not exist"):
        load_security(environ(home))


def test_a_working_directory_that_was_removed_is_no_place_to_look(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(home / READ[1])
    monkeypatch.chdir(home / "work")
    (home / "work").rmdir()
    assert find_security(environ(home)).used == file
    monkeypatch.undo()


def test_a_user_without_a_home_can_still_name_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    named = write(home / "mine.toml")
    variables = {"KAKOI_SECURITY_FILE": str(named), "XDG_CONFIG_HOME": str(home)}
    assert not load_security(variables).enabled
