"""What `kakoi doctor --explain` says is in reach: found by reaching for it."""

import json
from pathlib import Path

import pytest

from kakoi.backends.probes import exposure_from, find_exposure, split_sections
from tests.attacks.conftest import Place
from tests.cli.terminals import Door


@pytest.mark.anyio
async def test_it_finds_what_is_there_and_nothing_of_the_machine(
    place: Place, tmp_path: Path, mark: str
) -> None:
    (tmp_path / "id_rsa").write_text(mark)
    (place.workspace / "id_rsa").write_text("a key that was left in the workspace")
    found = await find_exposure(await place.sandbox.channel())
    assert found.secrets == (f"{place.inside}/id_rsa",)
    assert "/usr" in found.reads
    assert "/root" not in found.reads
    assert {"/", "/usr", "/etc", "/sys", "/proc"} & set(found.writes) == set()
    assert any(place.inside.startswith(path) for path in found.writes)
    assert not {"mem", "kmsg", "kvm", "sda", "vda", "fuse"} & set(found.devices)
    assert not [name for name in found.variables if "TOKEN" in name or "KEY" in name]
    assert 0 < found.processes < 20 or not place.traits.isolates_processes
    assert (place.workspace / "id_rsa").exists()
    assert not list(place.workspace.glob(".kakoi*"))


def test_paths_are_reported_once_and_only_the_outermost_that_can_be_written() -> None:
    text = (
        "\n[reads]\n/\n//usr\n/usr\n\n[writes]\n/tmp\n/tmp/x\n/tmpx\n[interfaces]\na\nb\n lo: 0\n"
    )
    found = exposure_from(split_sections(text))
    assert found.reads == ("/", "/usr")
    assert found.writes == ("/tmp", "/tmpx")
    assert found.interfaces == ("lo",)


@pytest.mark.slow("tries every sandbox of this machine")
def test_doctor_shows_it_on_request(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "CONTAINER_HOST": "unix:///nowhere"}
    door = Door(tmp_path, tmp_path / "log", nowhere)
    told = json.loads(door("doctor", "--explain", "--json")[1])
    assert told["in_reach"]["bubblewrap"]["interfaces"] == ["lo"]
    assert "in_reach" not in json.loads(door("doctor", "--json")[1])
    text = door("doctor", "--explain")[1]
    assert "what a command can reach in bubblewrap\n  reads      / " in text
    assert "secrets    none, judging by their names" in text
