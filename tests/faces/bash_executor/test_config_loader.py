"""ConfigLoader (spec C): the settings and the whitelist, read once and strictly."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.bash_executor import ConfigLoader, ConfigurationError
from kakoi.policy.profiles import load_policy
from tests.faces.bash_executor.conftest import Configure


@pytest.mark.requirement("C-004", "C-026")
def test_values_are_read_by_dots(configure: Configure) -> None:
    file = configure(executor={"root_dir": "/srv/project", "shell": "/bin/bash", "timeout": 5})
    config = ConfigLoader(file)
    assert config.get("executor.root_dir") == "/srv/project"
    assert config.get("executor.shell", "other") == "/bin/bash"
    assert config.get("executor.timeout", 30) == 5
    assert config.get("executor") == {
        "root_dir": "/srv/project",
        "shell": "/bin/bash",
        "timeout": 5,
    }


@pytest.mark.requirement("C-005")
@pytest.mark.parametrize("key", ["executor.timeout", "executor.timeout.more", "nowhere", "a.b.c"])
def test_a_missing_key_gives_the_default(configure: Configure, key: str) -> None:
    config = ConfigLoader(configure(security={"enable_whitelist": True}))
    assert config.get(key, 30) == 30
    assert config.get(key) is None


@pytest.mark.requirement("C-026")
def test_the_shipped_configuration_is_that_of_the_spec() -> None:
    config = ConfigLoader()
    assert config.get("executor.root_dir") is None  # The current directory.
    assert config.get("executor.shell") == "/bin/bash"
    assert config.get("executor.timeout") == 30
    assert config.get("security.enable_whitelist") is True
    assert config.get("security.block_patterns") == ["`", "$("]
    assert config.get("logging.level") == "INFO"


def test_what_is_given_out_cannot_change_what_was_read(configure: Configure) -> None:
    config = ConfigLoader(configure(security={"block_patterns": ["`"]}))
    config.get("security.block_patterns").append("x")
    config.get("security")["block_patterns"] = []
    config.load_whitelist().append("frobnicate")
    assert config.get("security.block_patterns") == ["`"]
    assert "frobnicate" not in config.load_whitelist()


@pytest.mark.requirement("C-006")
def test_the_whitelist_is_a_list_of_commands(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("ls\ngit status\n", "utf-8")
    config = ConfigLoader(configure(security={"whitelist_file": str(tmp_path / "list.txt")}))
    assert config.load_whitelist() == ["ls", "git status"]


_BLANK = st.sampled_from(["", "  ", "\t", "# a comment", "   # ls", "#"])


@pytest.mark.requirement("C-007")
@given(
    lines=st.lists(
        st.tuples(
            _BLANK,
            st.sampled_from(["ls", "  cat", "git status  ", "grep # to search"]),
            st.sampled_from(["\n", "\r\n"]),
        )
    )
)
def test_comments_and_blank_lines_of_the_whitelist_are_dropped(
    lines: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("whitelist")
    content = "".join(f"{blank}{end}{command}{end}" for blank, command, end in lines)
    (folder / "list.txt").write_bytes(content.encode())
    (folder / "config.yaml").write_text("security: {whitelist_file: list.txt}", "utf-8")
    expected = [command.partition("#")[0].strip() for _, command, _ in lines]
    assert ConfigLoader(folder / "config.yaml").load_whitelist() == expected


@pytest.mark.requirement("C-028", "Y-06")
def test_a_relative_whitelist_is_beside_the_configuration_wherever_we_are(
    tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.txt").write_text("ls", "utf-8")
    configure(security={"whitelist_file": "list.txt"})
    monkeypatch.chdir(tmp_path)
    config = ConfigLoader("config.yaml")
    monkeypatch.chdir("/")
    assert config.load_whitelist() == ["ls"]


@pytest.mark.requirement("C-030")
def test_the_shipped_whitelist_is_the_list_of_the_profile() -> None:
    listed = ConfigLoader().load_whitelist()
    assert sorted(listed) == sorted(load_policy("bash-executor").entries)
    for kind in (
        "ls cd pwd echo cat head tail wc date which",  # basic
        "mkdir touch cp mv rm find grep sort diff tar chmod",  # files
        "git",
        "python python3 pip pytest black mypy",  # Python
        "node npm make cmake cargo go gcc tsc",  # development
    ):
        assert set(kind.split()) <= set(listed)
    assert not {"sudo", "su", "dd", "ssh", "curl", "bash", "eval"} & set(listed)


@pytest.mark.requirement("C-032", "Y-06")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"executor: [", "is not valid YAML"),
        (b"executor: {timeout: 1, timeout: 2}", "timeout' occurs twice"),
        (b"just words", "expected keys and values"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{a: " * 400 + b"}" * 400, "is not valid YAML|nested too deeply"),
        (b"executor: !!bool x", "is not valid YAML"),
        (b"executor: {timeout: !!python/object/apply:os.getpid []}", "is not valid YAML"),
        (b"#" * 2_000_000, "is too long"),
        (None, "configuration file .* not found"),
    ],
)
def test_a_missing_or_broken_file_is_a_configuration_error(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "broken.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        ConfigLoader(file)


@pytest.mark.requirement("C-032")
@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"exector": {"timeout": 1}}, "did you mean `executor`"),
        ({"executor": {"timeot": 1}}, "executor: unknown key 'timeot'; did you mean `timeout`"),
        ({"executor": {"sandbox": "dokcer"}}, "did you mean `docker`"),
        ({"executor": {"sandbox": {"tpye": "host"}}}, "did you mean `type`"),
        ({"executor": []}, "executor is .*; it must be a section"),
        ({"executor": {"timeout": "30"}}, "executor.timeout is '30'"),
        ({"executor": {"timeout": True}}, "executor.timeout is True"),
        ({"executor": {"timeout": 0}}, "above zero"),
        ({"executor": {"timeout": float("nan")}}, "must be a number"),
        ({"executor": {"root_dir": 5}}, "executor.root_dir is 5"),
        ({"executor": {"shell": "/bin/zsh"}}, "must be bash: commands are judged as bash"),
        ({"executor": {"pure_commands": "ls"}}, "a list of texts"),
        ({"security": {"enable_whitelist": "no"}}, "true or false"),
        ({"security": {"block_patterns": "$("}}, "a list of texts"),
        ({"security": {"block_patterns": [""]}}, "none of them empty"),
        ({"logging": {"level": "LOUD"}}, "one of CRITICAL"),
        ({"logging": {"format": "%(nothing)s"}}, "not a logging format"),
        ({"logging": {"format": "no field"}}, "not a logging format"),
    ],
)
def test_an_unknown_key_and_a_wrong_value_are_named(
    configure: Configure, sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ConfigLoader(configure(**sections))


@pytest.mark.requirement("C-033")
def test_each_file_is_read_once(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("ls", "utf-8")
    file = configure(executor={"timeout": 7}, security={"whitelist_file": "list.txt"})
    config = ConfigLoader(file)
    file.unlink()
    assert config.load_whitelist() == ["ls"]
    (tmp_path / "list.txt").unlink()
    assert config.load_whitelist() == ["ls"]
    assert config.get("executor.timeout") == 7
