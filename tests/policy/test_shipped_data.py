"""The cache of the shipped policy: read only if it is whole and ours, and never needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kakoi.policy import shipped_data
from kakoi.policy.profiles import PROFILES
from kakoi.policy.shipped_data import load_data

FOLDER = "effects/programs"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kakoi" / "policy"


def only_file(cache: Path) -> Path:
    (found,) = cache.iterdir()
    return found


def sealed(data: object) -> bytes:
    body = json.dumps(data).encode()
    return shipped_data._digest(body) + b"\n" + body


def test_the_second_reading_comes_from_the_cache_and_is_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_data(FOLDER)
    assert only_file(cache).stat().st_mode & 0o777 == 0o600

    def unexpected(*_arguments: object) -> dict[str, object]:
        raise AssertionError("the YAML was parsed again")

    monkeypatch.setattr(shipped_data, "_parse", unexpected)
    assert load_data(FOLDER) == first


@pytest.mark.parametrize("name", [*PROFILES, "rules"])
def test_all_that_is_shipped_can_be_cached_as_it_is(cache: Path, name: str) -> None:
    assert load_data("profiles", only=name) == load_data("profiles", only=name)
    assert only_file(cache).name.startswith(f"profiles-{name}-")


@pytest.mark.parametrize("damage", ["tampered", "half-written", "empty", "not JSON", "a list"])
def test_a_damaged_cache_is_ignored_and_replaced(cache: Path, damage: str) -> None:
    right = load_data(FOLDER)
    file = only_file(cache)
    whole = file.read_bytes()
    file.write_bytes(
        {
            "tampered": whole.replace(b"writes", b"reads", 1),
            "half-written": whole[: len(whole) // 2],
            "empty": b"",
            "not JSON": shipped_data._digest(b"{") + b"\n{",
            "a list": sealed([1]),
        }[damage]
    )
    assert load_data(FOLDER) == right
    assert file.read_bytes() == whole


@pytest.mark.parametrize("mode", [0o640, 0o606, 0o622, 0o666])
def test_a_cache_that_others_could_read_or_write_is_ignored_and_replaced(
    cache: Path, mode: int
) -> None:
    right = load_data(FOLDER)
    file = only_file(cache)
    file.write_bytes(sealed({"rm": {"operands": "reads"}}))
    file.chmod(mode)
    assert load_data(FOLDER) == right
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_link_in_place_of_the_cache_is_not_followed(cache: Path, tmp_path: Path) -> None:
    right = load_data(FOLDER)
    file = only_file(cache)
    file.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(sealed({}))
    elsewhere.chmod(0o600)
    file.symlink_to(elsewhere)
    assert load_data(FOLDER) == right
    assert not file.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_cache_of_another_user_is_ignored_and_replaced(cache: Path) -> None:
    right = load_data(FOLDER)
    file = only_file(cache)
    file.write_bytes(sealed({}))
    os.chown(file, 65534, 65534)
    assert load_data(FOLDER) == right
    assert file.stat().st_uid == 0


def test_a_folder_that_cannot_be_made_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert "rm" in load_data(FOLDER)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_folder_in_place_of_the_cache_is_left_alone(cache: Path, is_empty: bool) -> None:
    right = load_data(FOLDER)
    file = only_file(cache)
    file.unlink()
    file.mkdir(mode=0o700)
    if not is_empty:
        (file / "kept").touch()
    assert load_data(FOLDER) == right
    assert list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_is_not_needed(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache.parent / "policy").chmod(0o500)
    right = load_data(FOLDER)
    assert load_data(FOLDER) == right
    assert os.geteuid() == 0 or not list(cache.iterdir())


def test_two_commands_that_write_the_cache_at_once_leave_it_whole(tmp_path: Path) -> None:
    """Both find a cache that another version left half-written."""
    cache = tmp_path / "kakoi" / "policy"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "kakoi", "check", "rm -rf /"]

    def answers(count: int) -> set[tuple[int, bytes]]:
        started = [
            subprocess.Popen(argv, cwd=tmp_path, env=environ, stdout=subprocess.PIPE)
            for _ in range(count)
        ]
        told = {(each.communicate(timeout=60)[0], each.returncode) for each in started}
        return {(status, out) for out, status in told}

    ((status, _),) = first = answers(1)
    assert status == 126
    whole = {each: each.read_bytes() for each in cache.iterdir()}
    for each, content in whole.items():
        each.write_bytes(content[: len(content) // 2])
    assert answers(2) == first
    assert {each: each.read_bytes() for each in cache.iterdir()} == whole


def test_old_versions_of_the_cache_do_not_pile_up(cache: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(8):
        old = cache / f"effects-programs-{number}.json"
        old.touch()
        os.utime(old, (number, number))
    load_data(FOLDER)
    names = {each.name for each in cache.iterdir()}
    assert len(names) == 4
    assert "effects-programs-0.json" not in names
