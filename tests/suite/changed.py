"""`make test-changed`: the tests that a change can affect, nearest first, for about a minute.

The change is the diff against main. On main itself, it is the uncommitted work, or else the last
commit. The distance of a test file is the length of the shortest chain of imports from it to a
changed file. A test named after a changed module is next to it. Files are added by distance until
they fill a minute of two workers, by the times in tests/profile.json. The output lists the files
that did not fit, and `make test` runs them.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BUDGET_S = 100.0
# The assumed time of a file without a measurement.
_GUESS_S = 2.0
# These are quick and concern all code.
ALWAYS = ("tests/test_architecture.py", "tests/test_public_names.py")
# A change here can affect every test.
_EVERYTHING = ("pyproject.toml", "conftest.py", "tests/conftest.py")
_TEST_FOLDERS = ("tests", "src/kakoi/conformance")
# Dynamic imports that are not visible in the source: (importer, folder it can import from).
_LAZY = (
    ("src/kakoi/cli/app.py", "src/kakoi/cli/commands"),
    ("src/kakoi/cli/commands/agent/__init__.py", "src/kakoi/cli/commands/agent"),
    ("src/kakoi/cli/commands/env/__init__.py", "src/kakoi/cli/commands/env"),
    ("tests/cli/forked.py", "src/kakoi/cli/commands"),
    ("src/kakoi/__init__.py", "src/kakoi"),
)


@dataclass(frozen=True)
class Selection:
    """Test files in order of distance, and those that did not fit."""

    files: list[str]
    left_out: list[str]


def changed_files(root: Path) -> list[str]:
    """Return the paths that differ from main, committed or not, including untracked files."""

    def git(*args: str) -> str:
        argv = ["git", "-C", str(root), *args]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main")
    new = git("ls-files", "--others", "--exclude-standard").splitlines()
    found = git("diff", "--name-only", base or "HEAD").splitlines() + new
    if not found and base in ("", head):
        found = git("diff", "--name-only", "HEAD~1", "HEAD").splitlines()
    return sorted(set(found))


def import_graph(root: Path) -> dict[str, set[str]]:
    """Map the path of each Python file to the paths of the files it imports."""
    sources = [*root.glob("conftest.py"), *(root / "tests").rglob("*.py")]
    sources += (root / "src" / "kakoi").rglob("*.py")
    modules = {_module(path.relative_to(root)): str(path.relative_to(root)) for path in sources}
    graph: dict[str, set[str]] = {}
    for path in sources:
        name = str(path.relative_to(root))
        graph[name] = {
            modules[module]
            for imported in _imports(path)
            if (module := _longest_known(imported, modules)) and modules[module] != name
        }
        # pytest gives a test the fixtures of every folder above it.
        folders = list(path.relative_to(root).parents)
        graph[name] |= {str(each / "conftest.py") for each in folders} & set(modules.values())
        graph[name].discard(name)
    for importer, folder in _LAZY:
        if importer in graph:
            graph[importer] |= {each for each in graph if str(Path(each).parent) == folder}
            graph[importer].discard(importer)
    return graph


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _longest_known(name: str, modules: Mapping[str, str]) -> str:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def distances(graph: Mapping[str, set[str]], changed: Iterable[str]) -> dict[str, int]:
    """Return the number of imports between each file and the nearest changed one."""
    importers: dict[str, set[str]] = {}
    for name, imported in graph.items():
        for each in imported:
            importers.setdefault(each, set()).add(name)
    found = {name: 0 for each in changed for name in _as_sources(each, graph)}
    edge = list(found)
    while edge:
        nearer, edge = edge, []
        for name in nearer:
            for importer in importers.get(name, ()):
                if importer not in found:
                    found[importer] = found[name] + 1
                    edge.append(importer)
    return found


def _as_sources(path: str, graph: Mapping[str, set[str]]) -> list[str]:
    """Map a changed data file to the modules of its folder or of the folder above."""
    if path in graph:
        return [path]
    if path in _EVERYTHING:
        return [each for each in graph if _is_test(each)]
    if path.endswith(".md") or path.startswith("docs/"):
        pages = ("tests/docs/", "tests/test_docs.py", "tests/test_readme.py")
        return [each for each in graph if each.startswith(pages)]
    for folder in Path(path).parents:
        beside = [each for each in graph if Path(each).parent == folder]
        if beside:
            return beside
    return []


def _is_test(path: str) -> bool:
    return Path(path).name.startswith("test_") and path.startswith(_TEST_FOLDERS)


def _kinship(test: str, changed: Iterable[str]) -> int:
    """Return 0 if the test is named after a changed file (test_check.py after cli/check.py), 1 if
    its folder has the name of a changed folder, else 2."""
    sources = [Path(each) for each in changed if each.startswith("src/")]
    if any(Path(test).stem == f"test_{source.stem}" for source in sources):
        return 0
    return 1 if any(Path(test).parts[1] in source.parts for source in sources) else 2


def select(
    graph: Mapping[str, set[str]],
    changed: Iterable[str],
    times_s: Mapping[str, float],
    budget_s: float = BUDGET_S,
) -> Selection:
    changed = list(changed)
    far = distances(graph, changed)
    for each in filter(_is_test, graph):
        if _kinship(each, changed) == 0:
            far[each] = min(far.get(each, 1), 1)
    near_first = sorted(
        (each for each in far if _is_test(each) and each not in ALWAYS),
        key=lambda each: (far[each], _kinship(each, changed), times_s.get(each, _GUESS_S), each),
    )
    files, left_out, spent = [each for each in ALWAYS if each in graph], [], 0.0
    for each in near_first:
        cost = times_s.get(each, _GUESS_S)
        # A test file that itself changed always runs, whatever it costs.
        if far[each] == 0 or spent + cost <= budget_s:
            files.append(each)
            spent += cost
        else:
            left_out.append(each)
    return Selection(files, left_out)


def main(root: Path) -> None:
    kept = root / "tests" / "profile.json"
    times_s = json.loads(kept.read_text("utf-8"))["files"] if kept.exists() else {}
    changed = changed_files(root)
    selection = select(import_graph(root), changed, times_s)
    print(f"test-changed: {len(changed)} changed files, {len(selection.files)} test files")
    if selection.left_out:
        print(f"test-changed: left to `make test`: {' '.join(selection.left_out)}")
    sys.stdout.flush()
    os.chdir(root)
    os.execv("scripts/test", ["scripts/test", "--tier", "default", *selection.files])  # noqa: S606


if __name__ == "__main__":
    main(Path(__file__).resolve().parent.parent.parent)
