"""The three test files of spec C hold as many tests as it says."""

import ast
from pathlib import Path

import pytest


@pytest.mark.requirement("C-034")
@pytest.mark.parametrize(
    ("name", "count"), [("config_loader", 11), ("validator", 10), ("executor", 9)]
)
def test_a_test_file_of_the_spec_holds_its_number_of_tests(name: str, count: int) -> None:
    source = Path(__file__).with_name(f"test_{name}.py").read_text("utf-8")
    tests = [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(set(tests)) == count
