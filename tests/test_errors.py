"""Errors say the same thing in two languages: a code, details, and spec B's words in Japanese."""

import re

import pytest

from kakoi import errors
from kakoi.errors import (
    ConfigurationError,
    EnvironmentUnavailableError,
    ExecutionError,
    ExecutionTimeoutError,
    ImagePullError,
    KakoiError,
    SandboxError,
)
from kakoi.process import ProcessExecutor, SpawnOptions
from kakoi.sandbox import DockerAdapter, DockerSettings, SandboxConfig, SandboxFactory
from tests.fakes import ScriptedExecutor, ScriptedStreams


def speak(monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    for name in ("KAKOI_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


SPEC_6_2: list[tuple[type[SandboxError], str, dict[str, object], str]] = [
    (
        EnvironmentUnavailableError,
        "ENVIRONMENT_UNAVAILABLE",
        {"environmentType": "docker"},
        "サンドボックス環境が利用できません: docker",
    ),
    (
        ExecutionTimeoutError,
        "EXECUTION_TIMEOUT",
        {"timeout": 5000},
        "実行がタイムアウトしました: 5000ms",
    ),
    (
        ImagePullError,
        "IMAGE_PULL_FAILED",
        {"image": "node:20", "stderr": "no such image"},
        "Dockerイメージの取得に失敗しました: node:20",
    ),
]


@pytest.mark.requirement("B-048", "X-22")
def test_a_failure_of_the_sandbox_has_a_message_a_code_and_details() -> None:
    error = SandboxError("the place is gone", details={"name": "x"}, hint="make another")
    assert (error.message, error.code, error.details) == (
        "the place is gone",
        "SANDBOX_FAILED",
        {"name": "x"},
    )
    assert isinstance(error, KakoiError)
    assert str(error) == "the place is gone"
    assert SandboxError("nothing more to say").details == {}


@pytest.mark.requirement("X-22")
def test_every_error_of_the_four_specs_is_in_one_tree() -> None:
    here = [each for each in vars(errors).values() if isinstance(each, type)]
    tree = {each for each in here if issubclass(each, KakoiError)}
    names = """BashExecutorError ConfigurationError SecurityError CommandNotAllowedError
        BlockedPatternError UserCancelledError ExecutionError TimeoutError SandboxError
        EnvironmentUnavailableError ImagePullError ExecutionTimeoutError"""
    assert {getattr(errors, name) for name in names.split()} <= tree
    assert {each for each in here if issubclass(each, BaseException)} == tree
    assert issubclass(ExecutionTimeoutError, TimeoutError)


@pytest.mark.requirement("B-049", "B-050", "B-051", "Y-03")
@pytest.mark.parametrize(("kind", "code", "details", "japanese"), SPEC_6_2)
@pytest.mark.parametrize(
    "environ",
    [{"KAKOI_LANG": "ja"}, {"LANG": "ja_JP.UTF-8"}, {"LC_ALL": "ja_JP", "LANG": "C"}],
    ids=str,
)
def test_in_japanese_it_says_what_the_spec_says(
    kind: type[SandboxError],
    code: str,
    details: dict[str, object],
    japanese: str,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = kind("in English", details=details)
    speak(monkeypatch, **environ)
    assert str(error) == japanese
    assert (error.code, error.details, error.message) == (code, details, "in English")
    assert isinstance(error, SandboxError)


@pytest.mark.requirement("B-049", "B-050", "B-051", "Y-03")
@pytest.mark.parametrize(("kind", "code", "details", "japanese"), SPEC_6_2)
@pytest.mark.parametrize(
    "environ",
    [{}, {"LANG": "C.UTF-8"}, {"KAKOI_LANG": "en", "LANG": "ja_JP.UTF-8"}, {"LANG": "de_DE"}],
    ids=str,
)
def test_in_any_other_language_it_is_english_with_the_same_code(
    kind: type[SandboxError],
    code: str,
    details: dict[str, object],
    japanese: str,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speak(monkeypatch, **environ)
    error = kind("in English", details=details)
    assert (str(error), error.code) == ("in English", code)


@pytest.mark.parametrize("details", [{}, {"timeout": None}, {"timeout": "soon"}])
def test_a_fact_without_japanese_words_is_reported_in_english(
    details: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, KAKOI_LANG="ja")
    assert str(ExecutionTimeoutError("it took too long", details=details)) == "it took too long"


@pytest.mark.anyio
@pytest.mark.requirement("B-049")
async def test_a_machine_without_docker_says_so_in_japanese(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, LANG="ja_JP.UTF-8")
    nothing, project = tmp_path_factory.mktemp("nothing"), tmp_path_factory.mktemp("project")
    factory = SandboxFactory(project, environ={"PATH": str(nothing)})
    with pytest.raises(EnvironmentUnavailableError) as caught:
        await factory.create(SandboxConfig(type="docker"))
    assert str(caught.value) == "サンドボックス環境が利用できません: docker"
    assert caught.value.details["environmentType"] == "docker"


@pytest.mark.anyio
@pytest.mark.requirement("B-050")
async def test_a_timeout_has_its_milliseconds_in_japanese_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speak(monkeypatch, KAKOI_LANG="ja")
    with pytest.raises(ExecutionTimeoutError) as caught:
        await ProcessExecutor().spawn("sleep", ["60"], SpawnOptions(timeout=100))
    assert str(caught.value) == "実行がタイムアウトしました: 100ms"
    assert caught.value.details["timeout"] == 100
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.anyio
@pytest.mark.requirement("B-051")
async def test_an_image_that_cannot_be_had_says_so_in_japanese(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speak(monkeypatch, KAKOI_LANG="ja")
    adapter = DockerAdapter(
        DockerSettings(image="no/such:image"), ScriptedExecutor(), streams=ScriptedStreams()
    )
    with pytest.raises(ImagePullError) as caught:
        await adapter.execute("true")
    assert str(caught.value) == "Dockerイメージの取得に失敗しました: no/such:image"
    assert caught.value.details["image"] == "no/such:image"
    assert "manifest unknown" in str(caught.value.details["stderr"])


@pytest.mark.anyio
@pytest.mark.requirement("B-052")
async def test_a_program_that_cannot_start_is_logged_by_the_executor_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="kakoi")
    with pytest.raises(ExecutionError, match="no-such-program"):
        await ProcessExecutor().spawn("no-such-program")
    assert "no-such-program" in caplog.text


def test_a_wrong_setting_has_a_code_of_its_own() -> None:
    assert ConfigurationError("x").code == "CONFIGURATION_ERROR"


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = re.findall(r"^[│├└─ ]*(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    found = {each for each in vars(errors).values() if isinstance(each, type)}
    assert sorted(drawn) == sorted(each.__name__ for each in found if issubclass(each, KakoiError))
