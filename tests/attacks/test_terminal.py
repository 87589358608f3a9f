"""Output that attacks the terminal of whoever looks at it: shown, not obeyed."""

import os
import pty
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.cli.io.terminal import Screen
from tests.cli.terminals import Door, terminal

# What the output holds → what a terminal is given.
ATTACKS = {
    "a title": (b"\x1b]0;root@host\x07", b"^[]0;root@host^G"),
    "the clipboard": (b"\x1b]52;c;cm0gLXJm\x1b\\", b"^[]52;c;cm0gLXJm^[\\"),
    "a link": (b"\x1b]8;;http://x.example\x07here", b"^[]8;;http://x.example^Ghere"),
    "clearing the screen": (b"secret\x1b[2J\x1b[H", b"secret^[[2J^[[H"),
    "going up to overwrite": (b"refused\n\x1b[1Aallowed", b"refused\n^[[1Aallowed"),
    "an answer that is typed for the user": (b"\x1b[6n\x1b[c\x1bZ\x05", b"^[[6n^[[c^[Z^E"),
    "a report of the title": (b"\x1b[21t", b"^[[21t"),
    "a key with a meaning": (b'\x1b[24;"id"p', b'^[[24;"id"p'),
    "a device string": (b"\x1bP$q\x1b\\", b"^[P$q^[\\"),
    "another set of characters": (b"\x1b(0\x0e", b"^[(0^N"),
    "the alternate screen": (b"\x1b[?1049h", b"^[[?1049h"),
    "one byte for two": (b"\x9b2J", b"\\x9b2J"),
    "one character for two": ("\x9b2J\x9d".encode(), b"\\x9b2J\\x9d"),
    "backspaces": (b"rm -rf\x08\x08\x08ls", b"rm -rf^H^H^Hls"),
    "concealed text": (b"\x1b[8mrm -rf ~\x1b[0m", b"^[[8mrm -rf ~\x1b[0m\x1b[0m"),
    "concealed among colours": (b"\x1b[1;08;31mx", b"^[[1;08;31mx"),
    "text from right to left": ("a\u202egpj.exe".encode(), b"a\\u202egpj.exe"),
    "a colour without end": (b"\x1b[" + b"1;" * 200 + b"m", b"^[[" + b"1;" * 200 + b"m"),
    "an escape at the end": (b"text\x1b", b"text^["),
    "half a character at the end": (b"text\xe3\x81", b"text\\xe3\\x81"),
    "a colour left on": (b"\x1b[31mred", b"\x1b[31mred\x1b[0m"),
}
HARMLESS = {
    "text": b"hello\n\tworld\r\n",
    "progress": b" 50 %\r100 %\n",
    "other alphabets": "囲い é ☃ 🙂\n".encode(),
    "colours": b"\x1b[1;31mFAILED\x1b[0m \x1b[38;5;196mx\x1b[38:2::1:2:3my\x1b[m",
}


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """A terminal that changes nothing: what is written to it, and what came out."""
    keys, line = pty.openpty()
    settings = termios.tcgetattr(line)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(line, termios.TCSANOW, settings)
    yield keys, line
    os.close(keys)
    os.close(line)


def on(screen: tuple[int, int], parts: list[bytes]) -> bytes:
    keys, line = screen
    shown = Screen(line)
    for part in parts:
        shown.write(part)
    shown.end()
    os.write(line, b"\x00")
    seen = b""
    while not seen.endswith(b"\x00"):
        seen += os.read(keys, 65536)
    return seen[:-1]


@pytest.mark.parametrize("name", ATTACKS)
def test_control_sequences_are_shown_instead_of_obeyed(name: str, screen: tuple[int, int]) -> None:
    given, wanted = ATTACKS[name]
    assert on(screen, [given]) == wanted


@pytest.mark.parametrize("name", ATTACKS)
def test_cut_into_pieces_it_is_the_same(name: str, screen: tuple[int, int]) -> None:
    given, wanted = ATTACKS[name]
    pieces = [given[at : at + 1] for at in range(len(given))]
    assert on(screen, pieces) == wanted


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm_is_left_alone(name: str, screen: tuple[int, int]) -> None:
    text = HARMLESS[name]
    ending = b"\x1b[0m" if b"\x1b" in text else b""
    assert on(screen, [text]) == text + ending
    assert on(screen, [text[at : at + 1] for at in range(len(text))]) == text + ending


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_no_control_reaches_the_terminal(parts: list[bytes]) -> None:
    keys, line = pty.openpty()
    try:
        seen = on((keys, line), parts).decode()
    finally:
        os.close(keys)
        os.close(line)
    left = seen.replace("\r\n", "\n")
    assert all(c in "\t\n\r" or c.isprintable() for c in left if c != "\x1b")
    assert all(part[:1] == "[" for part in left.split("\x1b")[1:])


def test_a_pipe_gets_every_byte_as_it_is() -> None:
    reading, writing = os.pipe()
    every = b"".join(given for given, _ in ATTACKS.values())
    shown = Screen(writing)
    shown.write(every)
    shown.end()
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == every


ATTACK = "printf '\\033]0;taken\\007\\033[2J'; printf '\\033[2Jerr' >&2"


def test_at_a_terminal_a_command_cannot_play_with_it(tmp_path: Path) -> None:
    door = Door(tmp_path, tmp_path / "log")
    with terminal(door, "run", "--sandbox", "bubblewrap", ATTACK) as screen:
        assert screen.wait() == 0
        assert b"^[]0;taken^G^[[2J" in screen.screen
        assert b"^[[2Jerr" in screen.screen
        assert b"\x1b" not in screen.screen


def test_a_requested_terminal_passes_everything_through(tmp_path: Path) -> None:
    door = Door(tmp_path, tmp_path / "log")
    with terminal(door, "run", "-t", "--sandbox", "bubblewrap", ATTACK) as screen:
        assert screen.wait() == 0
        assert b"\x1b]0;taken\x07\x1b[2J" in screen.screen
