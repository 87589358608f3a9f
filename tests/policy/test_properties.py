"""What must hold for every command, not only for those somebody thought of."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakoi.policy.decide import Decision, decide
from kakoi.policy.profiles import load_policy
from kakoi.policy.rules import Verdict

CORPUS = Path(__file__).parent / "corpus"
CWD = "/workspace/project"

REFUSED = [
    "sudo id", "su -", "rm -rf x", "rm -R x", "chmod 777 f", "chown a b", "mount x", "iptables -L", "systemctl stop x",
    "kill -9 1", "killall x", "reboot", "shutdown now", "dd if=a of=b", "mkfs x", "fdisk -l", "nc -l 1", "nmap x",
    "ssh host", "scp a b:", "rsync a b:", "frobnicate", "docker ps", "curl -d x http://example.org", "sed -i p f",
    "umount x", "ip6tables -L", "service x stop", "parted x",
    "netcat -l 1", "/usr/bin/sudo id", "./sudo id", "eval ls", "touch /etc/x", "git -c core.pager=x log",
]  # fmt: skip

CARRIERS = [
    "{}", "{}; ls", "ls; {}", "ls && {}", "ls || {}", "ls | {}", "{} | cat", "{} &", "ls\n{}", "({})", "{{ {}; }}",
    "if true; then {}; fi", "if {}; then ls; fi", "while {}; do ls; done", "for i in a b; do {}; done",
    "case x in x) {};; esac", "case x in y) ls;; *) {};; esac", "greet() {{ {}; }}; greet", "echo $({})", 'echo "$({})"',
    "echo `{}`", "cat <({})", "ls > >({})", "x=$({})", "x=$({}) ls", "echo ${{x:-$({})}}", "cat <<E\n$({})\nE",
    'cat <<< "$({})"', "echo $(( $({}) ))", "time {}", "! {}", "coproc {}", "[[ $({}) ]]", "ls > $({})",
    "env {}", "env A=b {}", "command {}", "nohup {}", "nice -n 5 {}", "timeout 5 {}", "timeout -k 1 -s KILL 5 {}",
    "stdbuf -oL {}", "setsid {}", "xargs {}", "xargs -n 1 -P 4 {}", "find . -exec {} \\;", "find . -type f -execdir {} +",
    "exec {}", "builtin {}", "ionice -c 3 {}", "watch -x {}", "npx {}", "uv run {}", "poetry run {}", "bundle exec {}",
    "env -i nice timeout 5 {}", "2>/dev/null {}", "{} 2>/dev/null", "trap 'ls' EXIT; {}", "set -e; {}", "A=1 B=2 {}",
]  # fmt: skip

NESTING = ["sh -c {}", "bash -c {}", "bash -lc {}", "env bash -c {}", "dash -c {}", "trap {} EXIT", "find . -exec sh -c {} \\;",
           "xargs sh -c {}", "env -S {}", "watch {}", "timeout 9 bash -euo pipefail -c {}"]  # fmt: skip


def judged(command: str) -> Decision:
    return decide(load_policy(), command, cwd=CWD)


@pytest.mark.requirement("A-075")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_refused_command_stays_refused_inside_every_carrier(carrier: str) -> None:
    for command in REFUSED:
        text = carrier.format(command)
        assert not judged(text).allowed, text


@pytest.mark.requirement("A-075")
@pytest.mark.parametrize("carrier", NESTING)
def test_a_refused_command_stays_refused_as_text_inside_a_command(carrier: str) -> None:
    for command in REFUSED:
        text = carrier.format(shlex.quote(command))
        assert not judged(text).allowed, text


@settings(max_examples=150)
@given(st.sampled_from(REFUSED), st.lists(st.sampled_from(CARRIERS), min_size=2, max_size=4))
def test_a_refused_command_stays_refused_inside_carriers_of_carriers(
    command: str, carriers: list[str]
) -> None:
    text = command
    for carrier in carriers:
        # Backquotes do not nest without escapes.
        text = carrier.replace("`{}`", "$({})").format(text)
    assert not judged(text).allowed, text


@pytest.mark.requirement("A-075")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_carriers_themselves_are_fine(carrier: str) -> None:
    needs_a_program = ("exec {}", "builtin {}", "coproc {}")
    text = carrier.format("ls")
    assert judged(text).allowed or carrier in needs_a_program, text


def quoted(draw: st.DrawFn, word: str) -> str:
    """One of the many spellings of a word."""
    out = ""
    at = 0
    while at < len(word):
        size = draw(st.integers(1, 3))
        piece = word[at : at + size]
        at += size
        style = draw(st.sampled_from(["bare", "single", "double", "escaped", "ansi", "empty"]))
        if style == "bare":
            out += piece if piece.isalnum() or piece in "-/." else shlex.quote(piece)
        elif style == "single":
            out += "'" + piece + "'"
        elif style == "double":
            out += '"' + piece + '"'
        elif style == "escaped":
            out += "".join("\\" + char for char in piece)
        elif style == "ansi":
            out += "$'" + "".join(f"\\x{ord(char):02x}" for char in piece) + "'"
        else:
            out += "''" + (piece if piece.isalnum() or piece in "-/." else shlex.quote(piece))
    return out


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    command = draw(
        st.sampled_from([*REFUSED, "ls -la", "git status", "grep -rn x src", "rm a b", "git push o main",
                         "chmod 755 f", "cp a b", "curl -s http://example.org/", "python3 -m pytest", "npm test"])
    )  # fmt: skip
    words = [word for word in command.split(" ") if word]
    return command, " ".join(quoted(draw, word) for word in words)


@settings(max_examples=250)
@given(spellings())
def test_quoting_never_changes_the_verdict(spelling: tuple[str, str]) -> None:
    plain, odd = spelling
    assert judged(odd).verdict is judged(plain).verdict, odd


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_no_text_makes_it_raise(text: str) -> None:
    assert judged(text).verdict in Verdict


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            ["ls", "rm", "-rf", "$x", '"$x"', "${x", "}", "$(", ")", "`", "'", '"', "((", "))", "[[", "]]", "|", "&&", ";",
             ";;", "\n", "<<E", "E", ">", "<", "{", "case", "in", "esac", "for", "do", "done", "if", "then", "fi", "f()",
             "x=", "=", "\\", "#", "!", "~", "*", "{a,b}", "env", "xargs", "find", "-exec", "\\;", "sed", "s/a/b/e", "awk",
             "git", "-c", "tar", "--", "-", "sh", "python3", "trap", "\ud800", "あ", "read", "a[0]", "coproc", "time"]
        ),
        max_size=14,
    )
)  # fmt: skip
def test_no_jumble_of_shell_makes_it_raise(pieces: list[str]) -> None:
    for glue in (" ", ""):
        decision = judged(glue.join(pieces))
        for finding in decision.findings:
            assert 0 <= finding.start <= finding.end <= len(decision.command)


def test_every_cut_of_a_command_gets_an_answer() -> None:
    lines = (CORPUS / "hostile.jsonl").read_text("utf-8").splitlines()
    commands = [json.loads(line)["command"] for line in lines]
    for command in commands[:: len(commands) // 25]:
        for end in range(0, min(len(command), 80), 3):
            assert judged(command[:end]).verdict in Verdict
