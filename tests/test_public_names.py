"""The public surface, pinned: a name comes or goes here first, on purpose."""

import importlib
import inspect
import json
import subprocess
import sys
from types import FunctionType

import pytest

import kakoi
import kakoi.sync

PUBLIC = [
    "ApplyResult",
    "AuditError",
    "BashExecutorError",
    "BlockedConnection",
    "BlockedPatternError",
    "Change",
    "ChangeKind",
    "Chunk",
    "CommandFailedError",
    "CommandNotAllowedError",
    "CommandStream",
    "ConfigurationError",
    "Decision",
    "EmptyCommandError",
    "EnvironmentUnavailableError",
    "ExecutionError",
    "ExecutionResult",
    "ExecutionTimeoutError",
    "FileError",
    "FileEvent",
    "FileInfo",
    "Files",
    "Finding",
    "ImagePullError",
    "Job",
    "KakoiError",
    "LimitError",
    "LimitReport",
    "MissingFileError",
    "OutputPart",
    "Policy",
    "Reason",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SecurityError",
    "Session",
    "TimeoutError",
    "UnsupportedError",
    "UserCancelledError",
    "Verdict",
    "Watch",
    "__version__",
    "agent",
    "decide",
    "load_policy",
]
BLOCKING = ["CommandStream", "Files", "Job", "Sandbox", "Session", "Watch"]
HEAVY = {
    "click",
    "pydantic",
    "yaml",
    "mcp",
    "rich",
    "httpx",
    "httpx2",
    "redis",
    "importlib.metadata",
}


def test_the_public_names_are_these() -> None:
    assert sorted(kakoi.__all__) == PUBLIC
    assert sorted(kakoi.sync.__all__) == BLOCKING


def test_every_public_name_can_be_had() -> None:
    assert [name for name in PUBLIC if getattr(kakoi, name, None) is None] == []
    assert set(PUBLIC) <= set(dir(kakoi))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(kakoi, "no_such_name")


def surface(kind: type) -> dict[str, list[tuple[str, str]]]:
    """Return the public names of a class, with the parameters of its methods."""
    found = {}
    for name, value in vars(kind).items():
        method = getattr(value, "__func__", value)
        if not name.startswith("_"):
            parameters = inspect.signature(method).parameters if callable(method) else {}
            found[name] = [(each.name, each.kind.name) for each in parameters.values()]
    return found


@pytest.mark.parametrize("name", BLOCKING)
def test_the_blocking_face_has_the_same_methods_with_the_same_arguments(name: str) -> None:
    blocking = surface(getattr(kakoi.sync, name))
    assert {
        name: arguments
        for name, arguments in surface(getattr(kakoi, name)).items()
        if blocking.get(name) != arguments
    } == {}


def test_importing_kakoi_loads_none_of_the_libraries() -> None:
    code = "import json, sys, kakoi; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(done.stdout))
    assert "kakoi" in loaded
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("kakoi.")} == set()


@pytest.mark.parametrize(
    "name",
    [
        "kakoi",
        "kakoi.sync",
        "kakoi.sandbox",
        "kakoi.bash_executor",
        "kakoi.shell",
        "kakoi.builtin",
        "kakoi.tasks",
        "kakoi.gate",
        "kakoi.audit",
        "kakoi.overlay",
        "kakoi.process",
    ],
)
def test_every_exported_class_and_function_has_a_docstring_of_its_own(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert set(module.__all__) <= set(dir(module))
    exported = {each: getattr(module, each) for each in module.__all__}
    documented = [
        each for each, value in exported.items() if isinstance(value, type | FunctionType)
    ]
    assert documented
    texts = {each: exported[each].__doc__ or "" for each in documented}
    # A dataclass without a docstring gets its signature for one.
    assert [each for each, text in texts.items() if not text or text.startswith(f"{each}(")] == []
