"""The public surface, pinned: a name comes or goes here first, on purpose."""

import json
import subprocess
import sys

import kakoi

PUBLIC = [
    "BashExecutorError",
    "BlockedPatternError",
    "CommandFailedError",
    "CommandNotAllowedError",
    "ConfigurationError",
    "Decision",
    "EmptyCommandError",
    "EnvironmentUnavailableError",
    "ExecutionError",
    "ExecutionResult",
    "ExecutionTimeoutError",
    "ImagePullError",
    "KakoiError",
    "Policy",
    "ProcessExecutor",
    "ProcessResult",
    "Reason",
    "SandboxError",
    "SecurityError",
    "SpawnOptions",
    "TimeoutError",
    "UserCancelledError",
    "Verdict",
    "__version__",
    "decide",
    "load_policy",
]
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


def test_every_public_name_can_be_had() -> None:
    assert [name for name in PUBLIC if getattr(kakoi, name, None) is None] == []
    assert set(PUBLIC) <= set(dir(kakoi))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(kakoi, "no_such_name")


def test_importing_kakoi_loads_none_of_the_libraries() -> None:
    code = "import json, sys, kakoi; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(done.stdout))
    assert "kakoi" in loaded
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("kakoi.")} == set()
