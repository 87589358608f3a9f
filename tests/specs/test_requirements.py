"""Requirement rows and tests name each other, both ways.

`requirements.txt` lists the rows of the specs' requirement list that are proved so far (X and Y
are its rows on conflicts between specs and on defects within one). A listed row without a test,
and a test that names an unlisted row, both fail here. `pending.txt` has the rows that are not
proved yet, and what each waits for.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SPECS = Path(__file__).resolve().parent
LISTED = (SPECS / "requirements.txt").read_text(encoding="utf-8").split()
# Row → what it waits for.
PENDING = dict(
    line.split(" ", 1) for line in (SPECS / "pending.txt").read_text(encoding="utf-8").splitlines()
)
ROWS = {"A": 103, "B": 56, "C": 34, "D": 52, "E": 31}


def named_requirements(source: str) -> Iterator[str]:
    """The ids in every `pytest.mark.requirement(…)`; what is no literal is given as it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
            for argument in node.args:
                is_literal = isinstance(argument, ast.Constant)
                yield ast.literal_eval(argument) if is_literal else ast.unparse(argument)


def named_in_tests() -> set[str]:
    files = sorted(SPECS.parent.rglob("*.py"))
    return {name for path in files for name in named_requirements(path.read_text("utf-8"))}


def test_every_listed_requirement_is_named_by_a_test() -> None:
    assert sorted(set(LISTED) - named_in_tests()) == []


def test_every_requirement_that_a_test_names_is_listed() -> None:
    assert sorted(named_in_tests() - set(LISTED)) == []


def test_every_row_is_proved_or_says_what_it_waits_for() -> None:
    rows = {f"{spec}-{number:03}" for spec, count in ROWS.items() for number in range(1, count + 1)}
    assert sum(ROWS.values()) == 276
    proved = {row for row in LISTED if row[0] in ROWS}
    assert sorted(proved & set(PENDING)) == []
    assert proved | set(PENDING) == rows
    assert all(PENDING.values())


def test_the_list_is_sorted_well_formed_and_without_repeats() -> None:
    assert sorted(set(LISTED)) == LISTED
    assert [line for line in LISTED if not re.fullmatch(r"[A-E]-\d{3}|[XY]-\d{2}", line)] == []


def test_ids_are_found_in_decorators_parameters_and_module_marks() -> None:
    source = """
pytestmark = pytest.mark.requirement("A-001")
@pytest.mark.requirement("B-001", "B-002")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("C-001"))])
def test_x(x): pytest.mark.requirement(f"D-{x}")
"""
    assert set(named_requirements(source)) == {"A-001", "B-001", "B-002", "C-001", "f'D-{x}'"}
