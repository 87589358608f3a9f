"""File accesses are judged like the command that would do the same, without any program."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakoi.errors import BlockedPatternError, ConfigurationError, SecurityError
from kakoi.policy.decide import decide
from kakoi.policy.explanation import format_decision
from kakoi.policy.file_access import FileAccess, FileAction, decide_access
from kakoi.policy.profiles import AllowedCommands, load_policy, tightened
from kakoi.policy.rules import Policy, Verdict

CWD: Final = "/home/me/project"
PROFILES: Final = ("coding-agent", "bash-executor", "shell")
EVERYDAY: Final = (
    *("a.txt", "./src/a.py", "src/../a", CWD, ".", f"{CWD}/deep/er/file", "with space", "a'b\"c"),
    *("[a-z]*?", "new\nline", "日本語", "#x", "a=b", "~", "$HOME/x", "-rf", "d/--help", "x/"),
    *("/tmp/x", "/var/tmp/y", "/dev/null", "/dev/stdout", "/usr/include/stdio.h", "/etc/hosts"),
    *("//tmp//x", "/proc/cpuinfo", "/", "..", "../sibling", "HEAD", ".gitignore", "a/.gitignore"),
)
HOSTILE: Final = (
    *("/etc/shadow", "../../../etc/shadow", "/etc/../etc//shadow", "/etc/passwd", "/etc/ssh/x"),
    *("/etc/sudoers.d/x", "/root/.ssh", ".ssh/id_rsa", "../.ssh/config", "x/.netrc", "~/.npmrc"),
    *("$HOME/.aws/credentials", "/home/me/.npmrc", "/proc/self/environ", "/proc/1/root/x"),
    *("/dev/fd/../environ", "/dev//fd/../maps", "/proc/self/task/1/mem", "/dev/sda", "/dev/mem"),
    *("/dev/tcp/example.org/80", "/dev/udp/a/1", "/dev/shm/x", "/dev/shm/../sda", "/dev/pts/0"),
    *("/var/run/docker.sock", "/run/secrets/x", ".git", ".git/", ".git/hooks/pre-commit"),
    *("sub/.git/config", ".git/HEAD", "x/HEAD", "/tmp/../etc/cron.d/x", "/tmp/../../etc/shadow"),
    *("/usr/lib/x", "/home/me/.bashrc", "/home/me/projects/x", "/home/other/project", "~/x"),
    *("~root/x", "/boot/x", "/sys/kernel/x", "a/../../../../etc/shadow", "`id`", "$(id)"),
)
# What only the program has: no program is judged here.
ABOUT_PROGRAMS: Final = frozenset({"not-listed", "asks-first"})
COMMANDS: Final[Mapping[str, Callable[[str], str]]] = {
    "read": lambda path: f"cat -- {path}",
    "list": lambda path: f"ls -- {path}",
    "write": lambda path: f"cat > {path}",
    "remove": lambda path: f"rm -- {path}",
    "remove recursively": lambda path: f"rm -r -- {path}",
}


def access_of(name: str, path: str) -> FileAccess:
    if name == "remove recursively":
        return FileAccess("remove", path, recursive=True)
    actions: Mapping[str, FileAction] = {"read": "read", "list": "list", "write": "write"}
    return FileAccess(actions.get(name, "remove"), path)


def compare(policy: Policy, access: FileAccess, command: str) -> None:
    done, run = decide_access(policy, access, cwd=CWD), decide(policy, command, cwd=CWD)
    rules = {finding.rule for finding in run.findings} - ABOUT_PROGRAMS
    assert (done.verdict, {finding.rule for finding in done.findings}) == (run.verdict, rules)
    said = {(each.rule, each.reason) for each in done.findings if each.rule != "blocked-pattern"}
    assert said <= {(each.rule, each.reason) for each in run.findings}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_access_is_judged_as_the_command_that_does_the_same(profile: str, name: str) -> None:
    policy = load_policy(profile)
    for path in (*EVERYDAY, *HOSTILE):
        compare(policy, access_of(name, path), COMMANDS[name](shlex.quote(path)))


@pytest.mark.parametrize("profile", PROFILES)
def test_a_move_removes_at_the_source_and_writes_at_the_destination(profile: str) -> None:
    policy = load_policy(profile)
    for path in (*EVERYDAY, *HOSTILE):
        for source, destination in ((path, "b"), ("a", path)):
            command = f"mv -T -- {shlex.quote(source)} {shlex.quote(destination)}"
            compare(policy, FileAccess("move", source, destination), command)


_NAMES = st.sampled_from(
    ".. . etc shadow passwd dev tcp fd shm sda null proc self environ root cwd tmp var run secrets "
    "home me project .ssh id_rsa .git hooks config HEAD .netrc docker.sock -x a a' 'b ~ $HOME * "
    "1 é".split(" ")
)
_PATHS = st.builds(
    lambda start, names: (start + "/".join(names)) or ".",
    st.sampled_from(["", "/", "//", "~/", "./", f"{CWD}/"]),
    st.lists(_NAMES, max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(COMMANDS)), path=_PATHS, destination=_PATHS)
def test_no_path_is_judged_in_another_way_than_in_a_command(
    name: str, path: str, destination: str
) -> None:
    policy = load_policy()
    compare(policy, access_of(name, path), COMMANDS[name](shlex.quote(path)))
    words = f"{shlex.quote(path)} {shlex.quote(destination)}"
    compare(policy, FileAccess("move", path, destination), f"mv -T -- {words}")


@settings(max_examples=200, deadline=None)
@given(
    path=_PATHS, destination=_PATHS, cwd=st.sampled_from([CWD, "/", "/tmp", "/home/me/project/"])
)
def test_a_resolved_access_is_absolute_and_stays_as_it_is(
    path: str, destination: str, cwd: str
) -> None:
    whole = FileAccess("move", path, destination).resolved(cwd)
    for each in (whole.path, whole.destination):
        assert each.startswith("/")
        assert not each.startswith("//")
        assert not {"..", "."} & set(each.split("/"))
    assert whole.resolved("/elsewhere") == whole
    decision = decide_access(load_policy(), whole, cwd=cwd)
    assert decision.command == str(whole)
    assert shlex.split(decision.command) == ["move", whole.path, whole.destination]


def test_the_refusal_is_about_the_path() -> None:
    decision = decide_access(load_policy(), FileAccess("write", "../x y"), cwd=CWD)
    assert format_decision(decision).splitlines() == [
        "deny[write-outside]: `/home/me/x y` is outside the workspace",
        "  |",
        "1 | write '/home/me/x y'",
        "  |       ^^^^^^^^^^^^^^",
        "  = help: Write inside the workspace, or to /tmp.",
    ]
    error = decision.error()
    assert type(error) is SecurityError
    assert str(error).startswith("Blocked file access: /home/me/x y: ")
    assert error.details["command"] == "write '/home/me/x y'"


@pytest.mark.parametrize(
    ("access", "text"),
    [
        (FileAccess("read", "notes.txt"), f"read {CWD}/notes.txt"),
        (FileAccess("list", ".."), "list /home/me"),
        (FileAccess("remove", "a;b"), f"remove '{CWD}/a;b'"),
        (FileAccess("remove", "a", recursive=True), f"remove recursively {CWD}/a"),
        (FileAccess("move", "a", "/tmp/b"), f"move {CWD}/a /tmp/b"),
    ],
)
def test_a_decision_says_in_a_few_words_what_is_done(access: FileAccess, text: str) -> None:
    assert decide_access(load_policy(), access, cwd=CWD).command == text


def test_no_list_of_programs_stands_in_the_way_of_a_file() -> None:
    nothing = load_policy(allowed=AllowedCommands(use_default=False, custom_list=("true",)))
    assert not decide(nothing, "cat a").allowed
    assert decide_access(nothing, FileAccess("read", "a"), cwd=CWD).allowed
    rule = {"id": "no-cat", "verdict": "deny", "commands": ["cat", "rm"], "reason": "no"}
    tighter = tightened(load_policy(), rules=[rule], origin="test")
    for action in ("read", "write", "remove"):
        assert decide_access(tighter, access_of(action, "a"), cwd=CWD).allowed


@pytest.mark.parametrize(
    ("conditions", "path", "holds"),
    [
        ({"effects": ["writes-git"]}, ".git/config", True),
        ({"effects": ["writes-git"]}, "src/config", False),
        ({"effects": ["writes-git"], "operands": [r"\.git/hooks/.*"]}, ".git/hooks/x", True),
        ({"effects": ["writes-git"], "operands": [r"\.git/hooks/.*"]}, f"{CWD}/.git/hooks/x", True),
        ({"effects": ["writes-git"], "operands": [f"{CWD}/.*"]}, "a/../.git/config", True),
        ({"effects": ["writes-git"], "operands": [r"\.git/hooks/.*"]}, ".git/config", False),
        ({"effects": ["writes-git"], "commands": ["cp"]}, ".git/config", False),
        ({"effects": ["writes-git"], "flags": ["-f"]}, ".git/config", False),
    ],
)
def test_rules_about_effects_hold_for_files(
    conditions: dict[str, Any], path: str, holds: bool
) -> None:
    rule = {"id": "mine", "verdict": "deny", "reason": "not here", **conditions}
    policy = tightened(load_policy(), rules=[rule], origin="test")
    decision = decide_access(policy, FileAccess("write", path), cwd=CWD)
    assert ("mine" in {finding.rule for finding in decision.findings}) == holds


def test_block_patterns_hold_for_paths_as_given_and_as_resolved() -> None:
    policy = replace(load_policy(), block_patterns=("secret", "/x/../", "it's", "read"))
    for path in ("a/secret/b", "/tmp/x/../y", "it's", "sec/../secret"):
        for access in (FileAccess("list", path), FileAccess("move", "a", path)):
            decision = decide_access(policy, access, cwd=CWD)
            assert decision.verdict is Verdict.DENY
            assert isinstance(decision.error(), BlockedPatternError)
            assert "any path that holds" in decision.findings[0].reason
    assert decide_access(policy, FileAccess("list", "a"), cwd="/x/secret").verdict is Verdict.DENY
    # The word in front of the path is ours.
    assert decide_access(policy, FileAccess("read", "a"), cwd=CWD).allowed


def test_names_that_no_shell_text_could_hold_are_judged_like_any_other() -> None:
    policy = load_policy()
    for name in ("\x1b[31m", "\u202e", "\udcff", "a\rb", "x" * 4000):
        assert decide_access(policy, FileAccess("remove", name), cwd=CWD).allowed
        outside = decide_access(policy, FileAccess("remove", f"/etc/{name}"), cwd=CWD)
        assert outside.findings[0].rule == "write-outside"
        assert "\x1b" not in format_decision(outside)


def test_the_roots_of_a_policy_are_where_files_may_be_written() -> None:
    policy = load_policy(roots=["/srv/work"])
    assert decide_access(policy, FileAccess("write", "/srv/work/a"), cwd=CWD).allowed
    assert not decide_access(policy, FileAccess("write", "a"), cwd=CWD).allowed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("read", ""), "`path` is empty"),
        (("read", "a\0b"), "`path` contains a NUL"),
        (("read", "a" * 4097), "`path` is longer than 4096"),
        (("read", b"a"), "`path` is b'a'; it must be text"),
        (("move", "a"), "`destination` is empty"),
        (("move", "a", "\0"), "`destination` contains a NUL"),
        (("read", "a", "b"), "`destination` is for `move`"),
        (("raed", "a"), "`action` is 'raed'; did you mean `read`"),
    ],
)
def test_a_wrong_access_names_the_argument(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileAccess(*arguments)


def test_only_a_removal_is_recursive() -> None:
    with pytest.raises(ConfigurationError, match="`recursive` is for `remove`"):
        FileAccess("write", "a", recursive=True)


@settings(max_examples=100, deadline=None)
@given(path=_PATHS, destination=_PATHS)
def test_the_text_of_an_access_says_all_of_it(path: str, destination: str) -> None:
    for access in (
        *(access_of(name, path) for name in COMMANDS),
        FileAccess("move", path, destination),
    ):
        assert FileAccess.parse(str(access)) == access


@pytest.mark.parametrize(
    "text",
    ["", "read", "read 'a", "cat a", "read a b", "move a", "remove a b", "read recursively a"],
)
def test_a_text_that_describes_no_access_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="does not describe a file access"):
        FileAccess.parse(text)
