"""Where settings come from, which of them wins, and what a project may not do."""

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kakoi.backends.select import engine_environment
from kakoi.errors import ConfigurationError
from kakoi.policy.decide import decide
from kakoi.policy.rules import Verdict
from kakoi.sandbox.from_settings import sandbox_from
from kakoi.settings.files import user_file
from kakoi.settings.loader import load_settings, project_file, with_project
from kakoi.settings.model import PolicySettings, Settings, defaults, settings_table, value_at
from kakoi.settings.policy import policy_from
from kakoi.settings.schema import json_schema
from kakoi.tasks.from_settings import environment_options

GIB = 1024**3
# Spec A, 10.1, without its remarks.
BLOCK = """
command_executor:
  enabled: false
  mcp_server:
    name: "command-executor"
    command: ["npx", "@sunwood-ai-labs/command-executor-mcp-server"]
  docker:
    base_image: "coding-agent-executor:latest"
    resources:
      cpu_limit: 2
      memory_limit: "4g"
      disk_limit: "10g"
    network:
      external_access: true
      whitelist_mode: false
      allowed_domains: []
  clone:
    shallow: true
    depth: 1
    auto_install_deps: true
  execution:
    timeout_seconds: 1800
    max_output_size: 1048576
  cleanup:
    interval_hours: 24
    stale_threshold_hours: 24
"""
# Each key of the block: its path here, its default, another value, and what that is read as.
KEYS: list[tuple[str, str, object, object, object]] = [
    ("enabled", "tasks.enabled", False, True, True),
    ("mcp_server.name", "tasks.mcp_server.name", "command-executor", "x", "x"),
    ("mcp_server.command", "tasks.mcp_server.command", (), ["a", "b"], ("a", "b")),
    ("docker.base_image", "tasks.base_image", "coding-agent-executor:latest", "x:1", "x:1"),
    ("docker.resources.cpu_limit", "resources.cpu_limit", 2, 0.5, 0.5),
    ("docker.resources.memory_limit", "resources.memory_limit", 4 * GIB, "1g", GIB),
    ("docker.resources.disk_limit", "resources.disk_limit", 10 * GIB, "2g", 2 * GIB),
    ("docker.network.external_access", "tasks.network.external_access", True, False, False),
    ("docker.network.whitelist_mode", "tasks.network.whitelist_mode", False, True, True),
    ("docker.network.allowed_domains", "tasks.network.allowed_domains", (), ["a.example"], ("a.example",)),
    ("clone.shallow", "tasks.clone.shallow", True, False, False),
    ("clone.depth", "tasks.clone.depth", 1, 5, 5),
    ("clone.auto_install_deps", "tasks.clone.auto_install_deps", True, False, False),
    ("execution.timeout_seconds", "execution.timeout_seconds", 1800, 60, 60),
    ("execution.max_output_size", "execution.max_output_size", 1048576, 4096, 4096),
    ("cleanup.interval_hours", "tasks.cleanup.interval_hours", 24, 1, 1),
    ("cleanup.stale_threshold_hours", "tasks.cleanup.stale_threshold_hours", 24, 48, 48),
    ("allowed_commands.use_default", "policy.use_default", True, False, False),
    ("allowed_commands.additional", "policy.additional", (), ["frob"], ("frob",)),
    ("allowed_commands.exclude", "policy.exclude", (), ["curl"], ("curl",)),
    ("allowed_commands.custom_list", "policy.custom_list", (), ["npm"], ("npm",)),
]  # fmt: skip


class Sources:
    """A user's file and a project's file in one folder."""

    def __init__(self, root: Path) -> None:
        self.user = root / "user.yaml"
        self.project = root / "project"
        self.project.mkdir()

    def load(
        self,
        user: str = "",
        project: str = "",
        call: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Every value that differs from its default."""
        self.user.write_text(user)
        (self.project / ".kakoi.yaml").write_text(project)
        given = {"KAKOI_CONFIG": str(self.user), **(environ or {})}
        loaded = load_settings(self.project, environ=given, call=call)
        found = {path: value_at(loaded.settings, path) for path in settings_table()}
        return {path: value for path, value in found.items() if value != defaults()[path]}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def nested(path: str, value: object) -> str:
    for name in reversed(path.split(".")):
        value = {name: value}
    return yaml.safe_dump(value)


def loaded_from(path: Path, text: str) -> Settings:
    path.write_text(text, encoding="utf-8")
    return load_settings(config_file=path, environ={}).settings


# --- Spec A ----------------------------------------------------------------------------------


@pytest.mark.requirement("A-098")
def test_tasks_have_no_environment_unless_somebody_says_so(sources: Sources) -> None:
    assert Settings().tasks.enabled is False
    assert sources.load() == {}
    assert sources.load("command_executor:\n") == {}


@pytest.mark.requirement("X-33")
@pytest.mark.parametrize(
    ("command", "designed"),
    [
        (["npx", "@sunwood-ai-labs/command-executor-mcp-server"], True),
        (["npx", "-y", "@sunwood-ai-labs/command-executor-mcp-server@latest"], True),
        (["npx", "@sunwood-ai-labs/command-executor-mcp-server@0.1.0", "--yes"], True),
        (["npx", "@sunwood-ai-labs/command-executor-mcp-server-2"], False),
        (["npx", "@sunwood-ai-labs/command-executor-mcp-server", "other"], False),
        (["node", "@sunwood-ai-labs/command-executor-mcp-server"], False),
        (["npx"], False),
    ],
)
def test_any_version_of_the_designs_own_server_means_kakois(
    tmp_path: Path, command: list[str], designed: bool
) -> None:
    text = f"command_executor: {{mcp_server: {{command: {json.dumps(command)}}}}}\n"
    server = loaded_from(tmp_path / "config.yaml", text).tasks.mcp_server
    assert server.command == tuple(command)
    assert server.is_foreign is not designed


@pytest.mark.requirement("A-099", "X-23")
def test_the_block_of_the_specification_loads_and_states_the_defaults(tmp_path: Path) -> None:
    loaded = loaded_from(tmp_path / "config.yaml", BLOCK)
    command = ("npx", "@sunwood-ai-labs/command-executor-mcp-server")
    assert loaded.tasks.mcp_server.command == command
    for _, path, default, _, _ in KEYS:
        if path != "tasks.mcp_server.command":
            assert value_at(loaded, path) == default, path
            assert defaults()[path] == default, path


@pytest.mark.requirement("A-099")
@pytest.mark.parametrize(("key", "path", "default", "given", "read"), KEYS)
def test_every_key_of_the_block_is_read(
    sources: Sources, key: str, path: str, default: object, given: object, read: object
) -> None:
    assert default != read
    assert sources.load(nested(f"command_executor.{key}", given)) == {path: read}


@pytest.mark.requirement("A-017", "A-022", "A-023", "A-024", "A-025", "A-042", "A-043", "A-048", "A-054")  # fmt: skip
@pytest.mark.parametrize(
    ("key", "value", "of", "default", "changed"),
    [
        ("docker.base_image", "x:1", "image", "coding-agent-executor:latest", "x:1"),
        ("docker.resources.cpu_limit", 0.5, "limits.cpus", 2, 0.5),
        ("docker.resources.memory_limit", "1g", "limits.memory_bytes", 4 * GIB, GIB),
        ("docker.resources.disk_limit", "2g", "limits.disk_bytes", 10 * GIB, 2 * GIB),
        ("clone.shallow", False, "clone.depth", 1, None),
        ("clone.depth", 5, "clone.depth", 1, 5),
        ("clone.auto_install_deps", False, "install_dependencies", True, False),
        ("execution.timeout_seconds", 60, "timeout_s", 1800, 60),
        ("execution.max_output_size", 4096, "max_output_bytes", 1048576, 4096),
        ("cleanup.stale_threshold_hours", 48, "stale_after", timedelta(hours=24), timedelta(2)),
    ],
)
def test_what_the_block_says_is_what_environments_are_made_with(
    tmp_path: Path, key: str, value: object, of: str, default: object, changed: object
) -> None:
    for text, wanted in (("", default), (nested(f"command_executor.{key}", value), changed)):
        options = environment_options(loaded_from(tmp_path / "config.yaml", text))
        assert attrgetter(of)(options) == wanted


VARIABLES: list[tuple[str, str, object, str, object]] = [
    ("COMMAND_EXECUTOR_ENABLED", "tasks.enabled", False, "true", True),
    ("EXECUTOR_BASE_IMAGE", "tasks.base_image", "coding-agent-executor:latest", "x:1", "x:1"),
    ("EXECUTOR_CPU_LIMIT", "resources.cpu_limit", 2, "0.5", 0.5),
    ("EXECUTOR_MEMORY_LIMIT", "resources.memory_limit", 4 * GIB, "1g", GIB),
    ("EXECUTOR_TIMEOUT", "execution.timeout_seconds", 1800, "60", 60),
]


@pytest.mark.requirement("A-100", "X-23")
@pytest.mark.parametrize(("name", "path", "default", "given", "read"), VARIABLES)
def test_every_variable_of_the_specification_is_read(
    sources: Sources, name: str, path: str, default: object, given: str, read: object
) -> None:
    assert defaults()[path] == default
    assert sources.load(environ={name: given}) == {path: read}
    assert sources.load(environ={name: ""}) == {}


@pytest.mark.requirement("A-100")
def test_the_engine_of_the_environment_is_the_one_that_is_used() -> None:
    given = engine_environment({"DOCKER_HOST": "unix:///run/other.sock", "X": "1"})
    assert given["DOCKER_HOST"] == "unix:///run/other.sock"
    # The default of Docker's own command line is the specification's.
    assert "DOCKER_HOST" not in engine_environment({})


@pytest.mark.requirement("A-100")
@pytest.mark.parametrize(
    ("name", "given"), [(n, "no such thing") for n, *_ in VARIABLES if n != "EXECUTOR_BASE_IMAGE"]
)
def test_a_wrong_variable_is_an_error_that_names_it(
    sources: Sources, name: str, given: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is 'no such thing'; it must be"):
        sources.load(environ={name: given})


# --- Specs B, C and D ------------------------------------------------------------------------

ORCH = """
agents: [a, b]
loop: {maxIterations: 3}
sandbox:
  type: docker
  fallback: host
  docker: {image: node:20-alpine, network: none, timeout: 300}
  containerUse: {image: "node:20", envId: ""}
  host: {timeout: 300, warnOnStart: false}
"""


@pytest.mark.requirement("B-046", "X-23", "X-24")
def test_the_section_of_an_orchestra_file_is_read_and_the_rest_left_alone(tmp_path: Path) -> None:
    settings = loaded_from(tmp_path / "orch.yml", ORCH)
    config = sandbox_from(settings)
    assert (config.type, config.fallback) == ("docker", "host")
    assert config.container_use.image == "node:20"
    assert config.host.warn_on_start is False
    without = loaded_from(tmp_path / "orch.yml", "agents: [a, b]\nloop: {maxIterations: 3}\n")
    assert sandbox_from(without) == sandbox_from(Settings())
    for wrong in ("sandbox: {typ: docker}", "sandbox: {docker: {Image2: x}}"):
        with pytest.raises(ConfigurationError, match="unknown key"):
            loaded_from(tmp_path / "orch.yml", wrong)


@pytest.mark.requirement("B-046", "X-23")
def test_an_orchestra_file_of_the_project_is_found_and_only_tightens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = {"HOME": str(tmp_path / "home")}
    file = tmp_path / "orch.yml"
    file.write_text(ORCH.replace("timeout: 300}", "timeout: 60}", 1))
    loaded = load_settings(tmp_path, environ=home)
    found = loaded.settings.sandbox
    assert (found.type, found.docker.image, found.docker.timeout) == (
        "docker",
        "node:20-alpine",
        60,
    )
    assert loaded.origin("sandbox.type") == f"{file}:5"
    assert (found.fallback, found.host.warn_on_start) == (None, True)
    assert "ignored `sandbox.fallback`" in caplog.text
    for weaker in ("type: host", "type: container-use", "docker: {network: bridge, timeout: 900}"):
        file.write_text(f"sandbox: {{{weaker}}}\ntype: 3\n")
        assert load_settings(tmp_path, environ=home).settings == Settings()
    file.write_text(ORCH)
    own = load_settings(tmp_path, environ={**home, "KAKOI_SANDBOX": "bubblewrap"})
    assert own.settings.sandbox.type == "bubblewrap"
    (tmp_path / "kakoi.yaml").write_text("policy: {exclude: [curl]}\n")
    assert load_settings(tmp_path, environ=home).settings.sandbox.type == "auto"


@pytest.mark.requirement("X-23")
def test_the_file_of_the_blocking_face_is_read(tmp_path: Path) -> None:
    text = """
executor: {root_dir: /x, shell: /bin/bash, timeout: 30}
security:
  enable_whitelist: true
  whitelist_file: commands_whitelist.txt
  block_patterns: ["`", "$("]
logging: {level: INFO, format: "%(message)s"}
"""
    settings = loaded_from(tmp_path / "config.yaml", text)
    assert settings.execution.timeout_seconds == 30
    assert settings.policy.block_patterns == ("`", "$(")
    policy = policy_from(settings.policy, roots=["/x"], origin="test")
    assert decide(policy, "echo `date`").verdict is Verdict.DENY


@pytest.mark.requirement("X-23")
def test_the_file_of_the_shell_face_is_read_and_its_list_is_the_whole_list(tmp_path: Path) -> None:
    text = """
[shell]
enabled = true
require_confirmation = true
timeout = 30
allowed_commands = ["git", "ls"]
blocked_commands = ["sudo", "rm -rf /", "git push", "curl -s | sh"]
allowed_directories = ["~/projects"]
"""
    settings = loaded_from(tmp_path / "security.toml", text)
    assert settings.execution.timeout_seconds == 30
    assert settings.policy.use_default is False
    inside = os.path.realpath(os.path.expanduser("~/projects/x"))
    policy = policy_from(settings.policy, roots=[inside], origin="test")
    verdicts = {text: decide(policy, text).verdict for text in ("ls", "make", "git push")}
    assert verdicts == {"ls": Verdict.ASK, "make": Verdict.DENY, "git push": Verdict.DENY}
    outside = policy_from(settings.policy, roots=["/x"], origin="test")
    assert decide(outside, "ls").verdict is Verdict.DENY


# --- Who wins --------------------------------------------------------------------------------


@pytest.mark.requirement("X-23")
def test_call_wins_over_environment_over_project_over_user_over_default(sources: Sources) -> None:
    path = "execution.timeout_seconds"
    user, project = "execution: {timeout_seconds: 60}", "execution: {timeout_seconds: 50}"
    assert sources.load(user)[path] == 60
    assert sources.load(user, project)[path] == 50
    assert sources.load(user, project, environ={"EXECUTOR_TIMEOUT": "40"})[path] == 40
    assert sources.load(user, project, {path: 30}, environ={"EXECUTOR_TIMEOUT": "40"})[path] == 30
    assert defaults()[path] == 1800


def test_every_value_knows_its_origin(sources: Sources) -> None:
    sources.load("\nexecution: {timeout_seconds: 60}\n", "policy: {exclude: [curl]}")
    environ = {"KAKOI_CONFIG": str(sources.user), "KAKOI_PROFILE": "shell"}
    loaded = load_settings(sources.project, environ=environ, call={"sandbox.type": "host"})
    assert loaded.origin("execution.timeout_seconds") == f"{sources.user}:2"
    assert loaded.origin("policy.exclude") == f"{sources.project}/.kakoi.yaml:1"
    assert loaded.origin("policy.profile") == "environment variable KAKOI_PROFILE"
    assert loaded.origin("sandbox.type") == "call"
    assert loaded.origin("tasks.enabled") == "default"


def test_a_path_of_a_call_that_does_not_exist_is_an_error(sources: Sources) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean `policy\.profile`"):
        sources.load(call={"policy.profil": "shell"})


def test_the_users_file_is_where_the_xdg_specification_wants_it() -> None:
    assert user_file({"KAKOI_CONFIG": "/c"}) == "/c"
    assert user_file({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == "/x/kakoi/config.yaml"
    assert user_file({"XDG_CONFIG_HOME": "x", "HOME": "/h"}) == "/h/.config/kakoi/config.yaml"


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="/gone not found") as caught:
        load_settings(environ={"KAKOI_CONFIG": "/gone"})
    assert "kakoi config init" in caught.value.hint
    with pytest.raises(ConfigurationError, match="/gone not found"):
        load_settings(config_file=Path("/gone"), environ={})
    assert load_settings(environ={"HOME": str(tmp_path)}).settings == Settings()


def test_two_files_of_a_project_are_an_error(tmp_path: Path) -> None:
    assert project_file(tmp_path) is None
    (tmp_path / "kakoi.yaml").write_text("")
    assert project_file(tmp_path) == tmp_path / "kakoi.yaml"
    (tmp_path / ".kakoi.yaml").write_text("")
    with pytest.raises(ConfigurationError, match=r"both .* exist"):
        project_file(tmp_path)


# --- Strictness ------------------------------------------------------------------------------


@pytest.mark.requirement("X-23")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n\nsandbox: {typ: docker}", ":3: unknown key `sandbox.typ`; did you mean `sandbox.type`?"),
        ("command_executor: {enable: true}", "did you mean `command_executor.enabled`?"),
        ("polcy: {profile: shell}", "did you mean `policy.profile`?"),
        ("zzz: 1", ":1: unknown key `zzz`"),
        ("policy: shell", ":1: `policy` is a section and must contain keys"),
        ("sandbox: {type: dokcer}", ":1: sandbox.type: unknown sandbox `dokcer`; did you mean `docker`?"),
        ("sandbox: {allowed_domains: [localhost]}", ":1: sandbox.allowed_domains: `localhost`: leave it out"),
        ("\ntasks: {network: {allowed_domains: [a.org, 'http://b']}}", ":2: tasks.network.allowed_domains: `http://b`"),
        ("<<: {sandbox: {type: host}}", "unknown key `<<.sandbox.type`"),
        ("execution: {timeoutSeconds: 1, timeout_seconds: 2}", "`execution.timeout_seconds` sets the same"),
        ("execution: {timeout_seconds: 1}\ncommand_executor: {execution: {timeout_seconds: 2}}", "sets the same value as"),
        ("execution: {timeout_seconds: 0x" + "f" * 60 + "}", "it must be a number of seconds above zero"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(sources: Sources, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sources.load(text)
    assert said in str(caught.value)


@pytest.mark.requirement("X-24")
@pytest.mark.parametrize("key", ["maxOutputSize", "max-output-size", "max_output_size"])
def test_keys_may_be_written_in_other_ways(sources: Sources, key: str) -> None:
    assert sources.load(f"execution: {{{key}: 5k}}") == {"execution.max_output_size": 5120}


@pytest.mark.parametrize("path", settings_table())
def test_a_wrong_type_is_refused_for_every_key(sources: Sources, path: str) -> None:
    for wrong in ({"a": 1}, [[1]], 1.5j):
        text = nested(path, str(wrong) if isinstance(wrong, complex) else wrong)
        if isinstance(wrong, complex) and settings_table()[path].kind.schema == {"type": "string"}:
            continue
        with pytest.raises(ConfigurationError) as caught:
            sources.load(text)
        assert path in str(caught.value)
        assert str(sources.user) in str(caught.value)


# --- A project -------------------------------------------------------------------------------

FORBIDDEN = [path for path, setting in settings_table().items() if setting.project == "nothing"]
LOWERED = [path for path, setting in settings_table().items() if setting.project == "lower"]
ADDED = [path for path, setting in settings_table().items() if setting.project == "add"]


def sample(path: str) -> object:
    """Some value of the right kind."""
    default = settings_table()[path].kind.written(defaults()[path])
    return list(default) if isinstance(default, tuple) else default


@pytest.mark.parametrize("name", ["kakoi.yaml", ".kakoi.yaml"])
def test_no_project_chooses_the_open_profile(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("policy: {profile: open}\n")
    for environ in ({}, {"KAKOI_PROFILE": "open"}, {"KAKOI_PROFILE": "shell"}):
        given = {"HOME": str(tmp_path / "home"), **environ}
        with pytest.raises(ConfigurationError, match=r"a project cannot set `policy\.profile`"):
            load_settings(tmp_path, environ=given)
    files = {name: b"policy:\n  profile: open\n"}
    with pytest.raises(ConfigurationError, match=r"a project cannot set `policy\.profile`"):
        with_project(Settings(), files, environ={})
    own = Settings(policy=PolicySettings(profile="open"))
    tightened = with_project(own, {name: b"policy: {blocked: [curl]}\n"}, environ={})
    policy = environment_options(tightened).policy
    assert decide(policy, "curl x").verdict is Verdict.DENY
    assert decide(policy, "sudo x").verdict is Verdict.ALLOW
    assert "profile" not in json_schema(project=True)["properties"]["policy"]["properties"]


@pytest.mark.parametrize("path", FORBIDDEN)
def test_a_project_cannot_set_what_could_loosen(sources: Sources, path: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a project cannot set `{path}`") as caught:
        sources.load(project=nested(path, sample(path)))
    assert "policy.blocked" in caught.value.hint
    for other in settings_table()[path].also:
        with pytest.raises(ConfigurationError, match="a project cannot set"):
            sources.load(project=nested(other, sample(path)))


@pytest.mark.parametrize("path", LOWERED)
def test_a_project_can_lower_a_limit_and_not_raise_it(sources: Sources, path: str) -> None:
    default = defaults()[path]
    assert sources.load(project=nested(path, 1)) == {path: 1}
    with pytest.raises(ConfigurationError, match=f"a project can only lower `{path}`"):
        sources.load(project=nested(path, int(default) + 1))
    with pytest.raises(ConfigurationError, match=f"`{path}`, which is 2$"):
        sources.load(nested(path, 2), nested(path, 3))


def test_a_size_that_a_project_can_only_lower_is_shown_as_people_write_it(sources: Sources) -> None:
    with pytest.raises(ConfigurationError, match=r"`resources\.memory_limit`, which is 4g$"):
        sources.load(project="resources: {memory_limit: 5g}")
    path = "policy.allowed_directories"
    with pytest.raises(ConfigurationError, match=rf":1: {path} is 'work'; it must be a folder"):
        sources.load("policy: {allowed_directories: [work]}")


def test_a_projects_file_with_another_ending_is_an_error_for_its_tasks_too() -> None:
    for name in ("kakoi.yml", ".kakoi.yml"):
        with pytest.raises(ConfigurationError, match=f"{name} is not read under this name"):
            with_project(Settings(), {name: b"policy: {exclude: [ls]}"}, environ={})


def test_a_rule_with_an_unknown_key_names_those_it_can_have() -> None:
    settings = PolicySettings(rules=({"id": "x", "decision": "deny"},))
    with pytest.raises(ConfigurationError, match="unknown key 'decision'") as caught:
        policy_from(settings, roots=["/"], origin="settings")
    assert "known keys: id, verdict, reason, hint, commands" in caught.value.hint


@pytest.mark.parametrize("path", [path for path in ADDED if path != "policy.rules"])
def test_a_project_adds_to_the_lists_that_tighten(sources: Sources, path: str) -> None:
    assert sources.load(nested(path, ["a"]), nested(path, ["b"])) == {path: ("a", "b")}
    assert sources.load(nested(path, ["a"]), nested(path, [])) == {path: ("a",)}


def test_a_project_chooses_an_image(sources: Sources) -> None:
    text = "sandbox: {docker: {image: x}}\ntasks: {base_image: y}\n"
    assert sources.load(project=text) == {"sandbox.docker.image": "x", "tasks.base_image": "y"}


def test_a_rule_of_a_project_that_allows_is_refused(sources: Sources) -> None:
    rule = {"id": "mine", "verdict": "allow", "reason": "r", "commands": "frob", "match": ["frob"]}
    found = sources.load(project=nested("policy.rules", [rule]))
    with pytest.raises(ConfigurationError, match="can only tighten"):
        policy_from(
            Settings().policy.__class__(rules=found["policy.rules"]), roots=["/x"], origin="project"
        )


def test_what_a_project_excludes_is_gone_from_a_users_own_list_too(sources: Sources) -> None:
    user = "policy: {use_default: false, custom_list: [npm, go, 'go test', maven]}"
    found = sources.load(user, "policy: {exclude: [go, maven]}")
    settings = load_settings(
        sources.project, environ={"KAKOI_CONFIG": str(sources.user)}
    ).settings.policy
    assert found["policy.exclude"] == ("go", "maven")
    assert list(policy_from(settings, roots=["/x"], origin="test").entries) == ["npm"]
