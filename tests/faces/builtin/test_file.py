"""Finding files, and text in them."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kakoi._support.asyncio import background
from kakoi._support.text import short_repr
from kakoi.builtin import file_search, grep_content
from kakoi.builtin.file import PROGRAMS
from kakoi.builtin.shell import executor_for
from kakoi.errors import ExecutionError, KakoiError, SecurityError

pytestmark = pytest.mark.anyio


NONSENSE = [None, 3, b"x", "", "a\0b", "\ud800", ["x"], 10**5000]


@pytest.fixture
def tree(workspace: Path) -> Path:
    for name in ("src/main.py", "src/test_main.py", "tests/test_a.py", "tests/data.txt"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(f"# {name}\nTODO one\nprint(1)\n")
    return workspace


@pytest.mark.requirement("D-031", "Y-12")
@pytest.mark.usefixtures("tree")
async def test_files_are_found_by_part_of_the_path_by_kind_and_by_glob() -> None:
    assert await file_search("test", directory="./tests", file_type="*.py") == ["./tests/test_a.py"]
    assert await file_search("main", directory="src") == ["src/main.py", "src/test_main.py"]
    assert await file_search("*.py", directory="src/") == ["src/main.py", "src/test_main.py"]
    assert await file_search("tests/*.txt") == []
    assert await file_search("./tests/*.txt") == ["./tests/data.txt"]
    assert await file_search("nothing") == []


async def test_odd_names_are_found_whole(workspace: Path) -> None:
    odd = ["two\nlines", "-rf", "a b", "$(x)", "é", "[x]"]
    for name in odd:
        (workspace / name).write_text("")
    assert sorted(await file_search("/", ".")) == sorted(f"./{name}" for name in odd)
    assert await file_search("a b") == ["./a b"]


@pytest.mark.requirement("D-032")
@pytest.mark.usefixtures("tree")
async def test_lines_are_found_with_their_numbers() -> None:
    files = ["src/main.py", "tests/data.txt", "missing", "src/test_main.py"]
    assert await grep_content("# src", files) == {
        "src/main.py": ["1:# src/main.py"],
        "src/test_main.py": ["1:# src/test_main.py"],
    }
    assert await grep_content("print(", ["src/main.py"]) == {"src/main.py": ["3:print(1)"]}
    assert await grep_content("nowhere", files) == {}
    assert await grep_content("TODO", []) == {}


async def test_what_is_no_file_is_passed_over(workspace: Path) -> None:
    (workspace / "a").write_text("needle\n")
    (workspace / "folder").mkdir()
    (workspace / "loop").symlink_to("loop")
    os.mkfifo(workspace / "pipe")
    for files in (["folder"], ["pipe"], ["loop"], ["folder", "pipe", "loop", "gone"]):
        assert await grep_content("needle", files) == {}
        assert await grep_content("needle", [*files, "a"]) == {"a": ["1:needle"]}


@pytest.mark.usefixtures("tree")
async def test_a_pattern_that_is_none_is_told() -> None:
    for files in (["src/main.py"], ["src/main.py", "gone"]):
        with pytest.raises(ExecutionError, match=r"grep failed: .*[Rr]egular expression"):
            await grep_content("[", files)


async def test_many_files_are_searched_in_parts(workspace: Path) -> None:
    names = [f"{number:04}-{'x' * 100}" for number in range(800)]
    for name in names:
        (workspace / name).write_text("needle\n" if name.startswith("07") else "hay\n")
    found = await grep_content("needle", names)
    assert sorted(found) == [name for name in names if name.startswith("07")]


async def test_an_answer_is_whole_or_none(workspace: Path) -> None:
    (workspace / "big").write_text("needle in a long line of hay\n" * 100_000)
    with pytest.raises(ExecutionError, match="too many results"):
        await grep_content("needle", ["big"])


@pytest.mark.requirement("D-030")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pattern=st.text(
        st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp"]), min_size=1
    )
)
def test_a_pattern_is_data(workspace: Path, pattern: str) -> None:
    (workspace / "-e").write_text("x\n")
    try:
        found = background().run(grep_content(pattern, ["-e", "/etc/no-such"]))
    except (ExecutionError, SecurityError):  # No regular expression, or a text nobody can read.
        found = {}
    assert set(found) <= {"-e"}
    assert os.listdir(workspace) == ["-e"]


@pytest.mark.requirement("D-033")
@pytest.mark.usefixtures("workspace")
def test_file_functions_run_four_programs_and_nothing_else() -> None:
    executor = executor_for(programs=PROGRAMS)
    assert executor.validate_command("find . -name x; grep y z; ls; cat a")
    for command in ("git status", "find . -exec id {} +", "rm x", "ls | xargs rm"):
        with pytest.raises(SecurityError):
            executor.validate_command(command)


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize("nonsense", NONSENSE, ids=short_repr)
async def test_nonsense_is_told_so(nonsense: object) -> None:
    given: Any = nonsense
    for call in (
        file_search(given),
        file_search("x", file_type=given),
        grep_content(given, ["x"]),
        grep_content("x", [given]),
    ):
        with pytest.raises(KakoiError):
            await call


@pytest.mark.usefixtures("workspace")
async def test_a_directory_that_is_not_there_is_told() -> None:
    for directory in ("no/such", 3, "a\0b", 10**5000):
        with pytest.raises(KakoiError):
            await file_search("x", directory=directory)  # type: ignore[arg-type]
    with pytest.raises(KakoiError):
        await grep_content("x", "not a list")
