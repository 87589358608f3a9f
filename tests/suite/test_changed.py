"""What `make test-changed` would run, for changes in a small tree and in this one."""

import subprocess
from pathlib import Path

import pytest

from tests.suite.changed import changed_files, import_graph, select
from tests.suite.profile import ROOT

FILES = {
    "src/kakoi/__init__.py": "",
    "src/kakoi/low.py": "",
    "src/kakoi/policy/__init__.py": "",
    "src/kakoi/policy/judge.py": "from kakoi import low\n",
    "src/kakoi/policy/programs/git.yaml": "a: 1\n",
    "src/kakoi/cli/__init__.py": "",
    "src/kakoi/cli/app.py": "",
    "src/kakoi/cli/commands/check.py": "def f():\n    from kakoi.policy.judge import x\n",
    "tests/conftest.py": "",
    "tests/helper.py": "import kakoi.policy.judge\n",
    "tests/test_low.py": "from kakoi.low import x\n",
    "tests/test_judge.py": "from tests.helper import y\n",
    "tests/cli/forked.py": "",
    "tests/cli/test_check.py": "from tests.cli.forked import kakoi\n",
    "tests/docs/test_pages.py": "",
    "docs/a.md": "# A\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def git(tree: Path, *args: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(tree), *who, *args], check=True, capture_output=True)


def chosen(tree: Path, *changed: str, **times_s: float) -> list[str]:
    return select(import_graph(tree), changed, times_s).files


def test_nearest_first(tree: Path) -> None:
    assert chosen(tree, "src/kakoi/policy/judge.py") == [
        "tests/test_judge.py",
        "tests/cli/test_check.py",
    ]
    assert chosen(tree, "src/kakoi/low.py")[0] == "tests/test_low.py"
    assert set(chosen(tree, "src/kakoi/low.py")) >= {"tests/test_judge.py"}


def test_a_test_of_a_command_is_near_the_command(tree: Path) -> None:
    assert chosen(tree, "src/kakoi/cli/commands/check.py") == ["tests/cli/test_check.py"]


def test_data_counts_as_the_code_beside_it_and_pages_as_documents(tree: Path) -> None:
    assert "tests/test_judge.py" in chosen(tree, "src/kakoi/policy/programs/git.yaml")
    assert chosen(tree, "docs/a.md") == ["tests/docs/test_pages.py"]


def test_settings_of_the_suite_reach_every_test(tree: Path) -> None:
    assert len(chosen(tree, "pyproject.toml")) == 4
    assert len(chosen(tree, "tests/conftest.py")) == 4


def test_what_does_not_fit_into_a_minute_is_left_out_by_name(tree: Path) -> None:
    times = {"tests/test_low.py": 30.0, "tests/test_judge.py": 90.0}
    graph = import_graph(tree)
    found = select(graph, ["src/kakoi/low.py"], times)
    assert found.files[0] == "tests/test_low.py"
    assert found.left_out == ["tests/test_judge.py"]
    # What was itself changed is run in any case.
    assert "tests/test_judge.py" in select(graph, ["tests/test_judge.py"], times, budget_s=1).files


def test_the_change_is_what_differs_from_main(tree: Path) -> None:
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "one")
    (tree / "docs/a.md").write_text("# B\n")
    git(tree, "commit", "-qam", "two")
    assert changed_files(tree) == ["docs/a.md"]
    (tree / "new.py").write_text("")
    assert changed_files(tree) == ["new.py"]
    git(tree, "checkout", "-qb", "work")
    (tree / "src/kakoi/low.py").write_text("x = 1\n")
    git(tree, "commit", "-qam", "three")
    assert changed_files(tree) == ["new.py", "src/kakoi/low.py"]


def test_a_change_of_the_policy_reaches_the_policys_tests() -> None:
    graph = import_graph(ROOT)
    files = select(graph, ["src/kakoi/policy/decide.py"], {}).files
    assert "tests/policy/test_decide.py" in files[:8]
