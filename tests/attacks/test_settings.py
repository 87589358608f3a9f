"""What a command leaves in the workspace is met by our own readers afterwards."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kakoi._support.parsing import read_text
from kakoi.errors import ConfigurationError
from kakoi.settings.loader import load_settings
from tests.attacks.conftest import Place

pytestmark = pytest.mark.anyio

WAIT_S = 30.0
# Each makes something else of the project's settings.
TRAPS = {
    "a pipe": "mkfifo kakoi.yaml",
    "a link to a pipe": "mkfifo pipe; ln -s pipe kakoi.yaml",
    "a link to itself": "ln -s kakoi.yaml kakoi.yaml",
    "an endless device": "ln -s /dev/zero kakoi.yaml",
    "a terminal": "ln -s /dev/tty kakoi.yaml",
    "a directory": "mkdir kakoi.yaml",
    "a socket": "python3 -c 'import socket; socket.socket(1).bind(\"kakoi.yaml\")' || mkfifo kakoi.yaml",
    "a file that is too long": "head -c 3000000 /dev/zero > kakoi.yaml",
}


@pytest.mark.parametrize("what", TRAPS)
async def test_no_settings_that_a_command_leaves_stop_us(place: Place, what: str) -> None:
    """Read or refused, and at once: nobody waits for the other end of a pipe."""
    clear = "rm -rf kakoi.yaml pipe"
    assert (await place.bash(f"{clear}; {TRAPS[what]}")).exit_code == 0
    try:
        for read in (
            lambda: load_settings(place.workspace, environ={}),
            # As if it had become that between the look and the use.
            lambda: read_text(place.workspace / "kakoi.yaml"),
        ):
            said = await asyncio.to_thread(complaint_of, read)
            assert said is None or "kakoi.yaml" in said
    finally:
        await place.bash(clear)


def complaint_of(read: Callable[[], object]) -> str | None:
    """What is wrong with it, if anything; a thread that waits for ever is left behind."""
    said: list[str | None] = []

    def work() -> None:
        try:
            read()
            said.append(None)
        except ConfigurationError as error:
            said.append(str(error))

    reader = threading.Thread(target=work, daemon=True)
    reader.start()
    reader.join(WAIT_S)
    assert said, "it waits"
    return said[0]


async def test_what_a_shell_hands_over_in_place_of_a_file_is_read(tmp_path: Path) -> None:
    """`--config <(…)` is a pipe, too."""
    reading, writing = os.pipe()

    def write_late() -> None:
        with open(writing, "wb") as file:
            file.write(b"policy: {}\n")

    writer = threading.Thread(target=write_late)
    writer.start()
    try:
        assert read_text(Path(f"/dev/fd/{reading}")) == "policy: {}\n"
    finally:
        writer.join()
        os.close(reading)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize("name", ["kakoi.yaml", ".kakoi.yaml"])
async def test_a_link_that_a_command_leaves_for_settings_shows_nothing(
    place: Place, tmp_path: Path, name: str
) -> None:
    """It leads to a file outside: what is in there is neither read nor quoted."""
    secret = tmp_path / "secret.yaml"
    secret.write_text("hunter2-is-the-password: 7\n")
    link = place.workspace / name
    assert (await place.bash(f"rm -f {name}; ln -s {secret} {name}")).exit_code == 0
    try:
        with pytest.raises(ConfigurationError, match="is a link") as caught:
            load_settings(place.workspace, environ={})
        assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value.details}"
        assert "remove it" in caught.value.hint
        assert str(link) in str(caught.value)
    finally:
        await place.bash(f"rm -f {name}")
    load_settings(place.workspace, environ={})
