"""The tables: commands with the verdict they must get, half of them everyday lines that must pass."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.policy.decide import decide
from kakoi.policy.profiles import load_policy
from tests.policy.corpus.hostile_generated import generate

CORPUS = Path(__file__).parent / "corpus"
CWD = "/workspace/project"


# What an allowed command can hold where a sandbox answers for it.
ANSWERED_FOR = {
    *(
        "runs-project-file",
        "project-program",
        "program-starts-programs",
        "script-file",
        "asks-first",
    ),
    *("deletes-generated", "mass-deletes-generated", "extends-path", "sends-locally"),
    *("serves-publicly", "system-install", "download-build"),
}


def rows(name: str) -> Iterator[tuple[str, str]]:
    for line in (CORPUS / name).read_text("utf-8").splitlines():
        row = json.loads(line)
        yield row["command"], row["verdict"]


def wrong(name: str) -> list[str]:
    policy = load_policy()
    found = []
    for command, wanted in rows(name):
        decision = decide(policy, command, cwd=CWD)
        given = decision.verdict.value
        if not (given != "allow" if wanted == "not-allow" else given == wanted):
            rules = [finding.rule for finding in decision.findings]
            found.append(f"{wanted} wanted, {given} given for {command!r} {rules}")
    return found


@pytest.mark.parametrize("name", ["hostile.jsonl", "hostile_more.jsonl", "holes.jsonl"])
@pytest.mark.slow("judges thousands of lines")
def test_nothing_that_must_not_run_is_allowed(name: str) -> None:
    assert wrong(name) == []


@pytest.mark.parametrize("name", ["everyday.jsonl", "everyday_more.jsonl", "transcripts.jsonl"])
def test_everyday_commands_pass_without_friction(name: str) -> None:
    assert wrong(name) == []


def test_a_sandbox_behind_a_command_changes_the_verdict_only_as_the_table_says() -> None:
    policy = load_policy()
    found = []
    for line in (CORPUS / "by_place.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        for key, confined in (("verdict", False), ("confined", True)):
            given = decide(policy, row["command"], cwd=CWD, confined=confined).verdict.value
            if given != row[key]:
                found.append(f"{row[key]} wanted, {given} given ({key}) for {row['command']!r}")
    assert found == []


@pytest.mark.slow("judges thousands of lines")
def test_a_sandbox_answers_for_what_the_project_runs_and_for_nothing_that_is_forbidden() -> None:
    policy = load_policy()
    found = []
    for name in ("hostile.jsonl", "hostile_more.jsonl", "holes.jsonl"):
        for command, wanted in rows(name):
            decision = decide(policy, command, cwd=CWD, confined=True)
            if wanted == "allow" or not decision.allowed:
                continue
            if {each.rule for each in decision.findings} - ANSWERED_FOR:
                found.append(command)
            forbidden = re.sub(r"\bid\b", "sudo id", command)
            if forbidden != command and decide(policy, forbidden, cwd=CWD, confined=True).allowed:
                found.append(forbidden)
    assert found == []


def test_the_tables_are_large_and_balanced() -> None:
    everyday = [v for name in ("everyday.jsonl", "everyday_more.jsonl") for _, v in rows(name)]
    hostile = [v for name in ("hostile.jsonl", "hostile_more.jsonl") for _, v in rows(name)]
    assert everyday.count("allow") >= 400
    assert len(hostile) >= 400


def test_oversized_and_overnested_texts_are_refused_and_never_raise() -> None:
    policy = load_policy()
    harmless = ("never-closed",)
    allowed = [
        (topic, command[:60])
        for topic, command in generate()
        if topic not in harmless and decide(policy, command, cwd=CWD).allowed
    ]
    assert allowed == []
