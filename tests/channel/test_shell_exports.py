"""Lists of variables as shells print them: read as they were meant, or not at all."""

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kakoi.channel.shell_exports import parse_exports, parse_list

SHELLS = [
    argv
    for argv in (["bash", "--posix"], ["bash"], ["dash"], ["busybox", "sh"])
    if shutil.which(argv[0])
]
BYTES = st.lists(st.integers(1, 255), max_size=40).map(bytes)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(BYTES, min_size=1, max_size=8))
def test_what_a_shell_prints_is_read_as_it_was(
    shell: list[str], locale: str, values: list[bytes]
) -> None:
    names = [f"V{number}" for number in range(len(values))]
    env = {
        b"LC_ALL": locale.encode(),
        **{n.encode(): v for n, v in zip(names, values, strict=True)},
    }
    program = shutil.which(shell[0])
    printed = subprocess.run(
        [str(program), *shell[1:], "-c", "export -p"],
        env=env,
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    found = parse_list(printed)
    assert found is not None
    for name, value in zip(names, values, strict=True):
        assert found[name] == value.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "printed",
    [
        b"nonsense\n",
        b"export A=1",
        b"export A=1 B=2\n",
        b"export A='1\n",
        b'export A="1\n',
        b'export A="$B"\n',
        b'export A="`id`"\n',
        b"export A=$(id)\n",
        b"export A=$'1\n",
        b"export 1A=1\n",
        b"export A-B=1\n",
        b"declare -fx A\nA () \n{ \n id\n}\n",
        b"export A=\\\n1\n",
        b"\n",
        b"export\n",
    ],
)
def test_what_no_shell_would_print_says_nothing(printed: bytes) -> None:
    assert parse_list(printed) is None


@given(st.binary(max_size=200))
def test_whatever_comes_it_is_read_or_not(report: bytes) -> None:
    for name, value in (parse_exports(report) or {}).items():
        assert name.isidentifier()
        assert value is None or "\0" not in value


def test_it_takes_no_longer_for_a_list_that_is_made_to_take_long() -> None:
    for part in (b"'", b'"', b"\\", b"$'", b"\\\\", b"a'b'", b'"\\"'):
        parse_list(b"export A=" + part * (32_000 // len(part)))
        parse_list(b'export A="' + part * (32_000 // len(part)) + b"x")
    assert parse_list(b"export A=" + b"'a'" * 10_000 + b"\n") == {"A": "a" * 10_000}


def test_a_report_is_two_lists_and_shows_the_difference() -> None:
    report = b"export A='1'\nexport B='2'\nexport PWD='/'\n\0export A='1'\nexport C='3'\n\0"
    assert parse_exports(report) == {"B": None, "C": "3"}
    for cut in range(len(report)):
        assert parse_exports(report[:cut]) is None
    assert parse_exports(report + b"more") is None
