"""Profiles, lists and rules: what a user may change, and what stays as it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import pytest

from kakoi.errors import CommandNotAllowedError, ConfigurationError
from kakoi.policy.decide import decide
from kakoi.policy.default_commands import COMMANDS
from kakoi.policy.description import policy_as_dict, policy_as_text
from kakoi.policy.effects.arguments import Spec, Style
from kakoi.policy.effects.invocation_effects import (
    _PLAIN_OPERANDS,
    _READERS,
    _REFINEMENTS,
    _RUNNING_OPERANDS,
)
from kakoi.policy.effects.programs import PLAIN, known_programs, spec_of
from kakoi.policy.file_access import FileAccess, FileAction, decide_access
from kakoi.policy.judging.judge import _HANDLERS
from kakoi.policy.profiles import (
    DEFAULT_PROFILE,
    PROFILES,
    AllowedCommands,
    _known_effects,
    check_examples,
    load_policy,
    prompt_commands,
    rule_from,
    tightened,
)
from kakoi.policy.rules import Verdict
from kakoi.settings.model import PolicySettings
from kakoi.settings.policy import policy_from

CORPUS: Final = Path(__file__).parent / "corpus"

PROMPT = """\
Build/Package Management: npm, yarn, pnpm, pip, pip3, conda, mamba, python, python3, go, cargo, maven, gradle, make, cmake, bundle, gem, composer, dotnet
Test Execution: pytest, jest, mocha, rspec, phpunit, go test, cargo test, dotnet test
Linter/Formatter: eslint, prettier, black, flake8, pylint, mypy, rubocop, gofmt, golint, rustfmt, clippy, tsc
File Operations: ls, cat, head, tail, grep, find, wc, diff, tree, file, stat
Version Control: git status, git diff, git log, git branch, git show, git blame
Utilities: echo, pwd, cd, mkdir, rm, cp, mv, touch, chmod, env, which, curl, wget, tar, unzip, jq, sed, awk, sort, uniq, xargs"""


@pytest.mark.parametrize(
    "category",
    [
        pytest.param("build", marks=pytest.mark.requirement("A-060")),
        pytest.param("test", marks=pytest.mark.requirement("A-061")),
        pytest.param("lint", marks=pytest.mark.requirement("A-062")),
        pytest.param("files", marks=pytest.mark.requirement("A-063")),
        pytest.param("vcs", marks=pytest.mark.requirement("A-064")),
        pytest.param("utilities", marks=pytest.mark.requirement("A-065")),
    ],
)
def test_the_default_list_holds_exactly_the_commands_of_the_spec(category: str) -> None:
    line = PROMPT.splitlines()[list(COMMANDS).index(category)]
    wanted = line.partition(": ")[2].split(", ")
    policy = load_policy()
    listed = [e.command for e in policy.entries.values() if e.category == category]
    assert listed == wanted
    for command in wanted:
        assert policy.entries[command].verdict is Verdict.ALLOW


def test_the_prompt_shows_the_six_lines_of_the_spec() -> None:
    assert prompt_commands(load_policy()) == PROMPT


# What the tables of spec A, 6.3.1 to 6.3.6, give as examples of use.
EXAMPLES = {
    "build": """
        npm install; npm run build; npm test; yarn install; yarn build; yarn test; pnpm install; pnpm build
        pip install; pip list; pip3 install -r requirements.txt
        conda activate; conda install; conda env create; mamba install; mamba env create -f condaenv.yaml
        python setup.py; python -m pytest; python3 -m venv; python3 script.py
        go build; go test; go mod download; cargo build; cargo test; mvn install; mvn test
        gradle build; gradle test; make; make install; make test; cmake .; cmake --build .
        bundle install; bundle exec; gem install; composer install; composer update; dotnet build; dotnet test
    """,
    "test": """
        pytest; pytest -v; pytest tests/; jest; jest --coverage; mocha; mocha tests/; rspec; rspec spec/
        phpunit; phpunit tests/; go test ./...; go test -v; cargo test; cargo test --all; dotnet test
    """,
    "lint": """
        eslint .; eslint --fix .; prettier --check .; prettier --write .; black .; black --check .
        flake8; flake8 src/; pylint src/; mypy src/; rubocop; rubocop -a; gofmt -w .; golint ./...
        rustfmt --check .; cargo clippy; tsc --noEmit; tsc
    """,
    "files": """
        ls -la; ls -R; cat file.txt; head -n 50 file.txt; tail -n 50 file.txt
        grep -r "pattern" .; grep -rn "function" src/; find . -name "*.py"; find . -type f; wc -l file.txt
        diff file1.txt file2.txt; tree; tree -L 2; file filename; stat filename
    """,
    "vcs": """
        git status; git diff; git diff HEAD~1; git log --oneline -10; git branch; git branch -a
        git show HEAD; git blame file.txt
    """,
    "utilities": """
        echo "text"; pwd; cd src/; mkdir -p dir/subdir; rm file.txt; cp src.txt dst.txt; mv old.txt new.txt
        touch newfile.txt; chmod +x script.sh; env; which python; curl -s https://api.example.com
        wget https://example.com/file; tar -xzf archive.tar.gz; unzip archive.zip; cat data.json | jq '.key'
        sed 's/old/new/g' file.txt; awk '{print $1}' file.txt; sort file.txt; uniq file.txt
        find . -name "*.txt" | xargs grep "pattern"
    """,
}


@pytest.mark.parametrize(
    "category",
    [
        pytest.param("build", marks=pytest.mark.requirement("A-060")),
        pytest.param("test", marks=pytest.mark.requirement("A-061")),
        pytest.param("lint", marks=pytest.mark.requirement("A-062")),
        pytest.param("files", marks=pytest.mark.requirement("A-063")),
        pytest.param("vcs", marks=pytest.mark.requirement("A-064")),
        pytest.param("utilities", marks=pytest.mark.requirement("A-065", "A-067")),
    ],
)
def test_every_example_of_the_spec_may_run(category: str) -> None:
    examples = [line.strip() for line in EXAMPLES[category].replace(";", "\n").split("\n")]
    assert len(examples) > 7
    policy = load_policy()
    judged = {text: decide(policy, text, cwd="/workspace/project") for text in examples if text}
    assert [text for text, decision in judged.items() if not decision.allowed] == []


@pytest.mark.requirement("A-060")
@pytest.mark.parametrize("command", ["maven test", "mvn test", "gradle build"])
def test_maven_goes_by_both_names(command: str) -> None:
    assert decide(load_policy(), command).allowed


@pytest.mark.requirement("A-076")
def test_additions_and_removals_change_the_default_list() -> None:
    lists = AllowedCommands(
        additional=("custom-build-tool", "terraform plan"), exclude=("curl", "wget")
    )
    policy = load_policy(allowed=lists)
    assert decide(policy, "custom-build-tool --fast").allowed
    assert decide(policy, "terraform plan").allowed
    assert not decide(policy, "terraform apply").allowed
    assert not decide(policy, "curl https://example.org").allowed
    assert not decide(policy, "ls | xargs wget").allowed
    assert decide(policy, "ls").allowed
    shown = prompt_commands(policy)
    assert "custom-build-tool" in shown
    assert "curl" not in shown


@pytest.mark.requirement("A-077")
def test_a_custom_list_is_the_whole_list() -> None:
    lists = AllowedCommands(
        use_default=False, custom_list=("npm", "python", "grep"), additional=("ls",)
    )
    policy = load_policy(allowed=lists)
    for command in ("npm test", "python x.py", "grep -rn x ."):
        assert decide(policy, command).allowed
    for command in ("ls", "echo hi", "git status", "true", "env python x.py", "sh -c 'npm test'"):
        assert not decide(policy, command).allowed
    assert prompt_commands(policy) == "Build/Package Management: npm, python\nFile Operations: grep"


# Spec A, 6.3.7, and some more.
FORBIDDEN = """
sudo su chown mount umount iptables ip6tables systemctl service kill killall reboot shutdown dd mkfs fdisk parted
nc netcat nmap ssh scp rsync docker eval
""".split()


@pytest.mark.requirement("A-072", "A-073", "A-074", "A-078")
@pytest.mark.parametrize("program", FORBIDDEN)
def test_a_denied_program_stays_denied_even_if_it_is_added(program: str) -> None:
    for lists in (
        AllowedCommands(additional=(program,)),
        AllowedCommands(use_default=False, custom_list=(program,)),
    ):
        decision = decide(load_policy(allowed=lists), f"{program} x")
        assert decision.verdict is Verdict.DENY


@pytest.mark.parametrize(
    ("addition", "allowed", "refused"),
    [
        ("docker:read", "docker logs x", "docker run x"),
        ("kubectl:read", "kubectl get pods", "kubectl get secrets"),
        ("terraform:read", "terraform validate", "terraform apply"),
        ("aws:read", "aws s3 ls", "aws s3 cp a s3://b"),
    ],
)
def test_an_addition_allows_the_forms_that_only_read(
    addition: str, allowed: str, refused: str
) -> None:
    policy = load_policy(allowed=AllowedCommands(additional=(addition,)))
    assert decide(policy, allowed).allowed
    assert decide(policy, refused).verdict is Verdict.DENY
    assert not decide(load_policy(), allowed).allowed


@pytest.mark.parametrize("addition", ["docker:write", "docker:", "dockr:read", "docker:Read"])
def test_an_addition_that_does_not_exist_is_an_error_that_names_those_that_do(
    addition: str,
) -> None:
    with pytest.raises(ConfigurationError, match="unknown addition") as caught:
        load_policy(allowed=AllowedCommands(additional=(addition,)))
    assert "docker:read" in (caught.value.hint or "")


@pytest.mark.requirement("A-078")
@pytest.mark.parametrize("command", ["rm -rf x", "chmod 777 f"])
def test_a_denied_form_stays_denied_even_if_it_is_added(command: str) -> None:
    program = command.partition(" ")[0]
    for added in (program, command, command.rpartition(" ")[0]):
        for lists in (
            AllowedCommands(additional=(added,)),
            AllowedCommands(use_default=False, custom_list=(added,)),
        ):
            assert decide(load_policy(allowed=lists), command).verdict is Verdict.DENY


def test_an_added_program_is_still_judged_by_its_arguments() -> None:
    policy = load_policy(allowed=AllowedCommands(additional=("./scripts/build.sh", "perl")))
    assert decide(policy, "./scripts/build.sh --all").allowed
    assert not decide(policy, "./scripts/build.sh > /etc/x").allowed
    assert not decide(policy, "perl -pi -e s/a/b/ f").allowed


@pytest.mark.parametrize("profile", PROFILES)
def test_every_shipped_rule_has_examples_both_ways(profile: str) -> None:
    policy = load_policy(profile)
    assert policy.rules or profile == "open"
    for rule in policy.rules:
        assert rule.match, rule.id
        assert rule.not_match, rule.id
        assert rule.reason, rule.id
        assert rule.hint, rule.id


def test_every_shipped_rule_agrees_with_its_examples() -> None:
    policy = load_policy()
    check_examples(policy, policy.rules)
    for profile in PROFILES:
        own = load_policy(profile)
        check_examples(own, [rule for rule in own.rules if rule.origin == f"{profile}.yaml"])


def test_an_example_that_does_not_hold_is_found_on_load() -> None:
    rule = {"id": "no-ls", "verdict": "deny", "commands": ["ls"], "reason": "no"}
    with pytest.raises(ConfigurationError, match="does not match its example 'cat x'"):
        tightened(load_policy(), rules=[{**rule, "match": ["cat x"]}], origin=".kakoi.yaml")
    with pytest.raises(ConfigurationError, match="matches 'ls -l', which it must not"):
        tightened(load_policy(), rules=[{**rule, "not_match": ["ls -l"]}], origin=".kakoi.yaml")


def test_a_project_can_tighten_but_never_widen() -> None:
    rule = {
        "id": "no-publish",
        "verdict": "deny",
        "commands": ["npm run"],
        "operands": ["publish.*"],
        "reason": "publishing is for people",
        "match": ["npm run publish-all"],
        "not_match": ["npm run build"],
    }
    policy = tightened(load_policy(), rules=[rule], origin=".kakoi.yaml")
    assert decide(policy, "npm run publish-all").verdict is Verdict.DENY
    assert decide(policy, "npm run build").allowed
    assert ".kakoi.yaml" in policy.origins
    with pytest.raises(ConfigurationError, match="can only tighten"):
        tightened(load_policy(), rules=[{**rule, "verdict": "allow"}], origin=".kakoi.yaml")


def test_a_rule_can_be_about_a_flag_in_any_spelling() -> None:
    rule = {"id": "x", "verdict": "ask", "commands": ["sort"], "flags": ["--reverse"], "reason": "r",
            "match": ["sort --rev f"], "not_match": ["sort f"]}  # fmt: skip
    policy = tightened(load_policy(), rules=[rule], origin="test")
    assert decide(policy, "sort f --reverse").verdict is Verdict.ASK


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            {"id": "a", "verdict": "deny", "reason": "r", "comands": ["x"]},
            "did you mean `commands`",
        ),
        ({"id": "a", "verdict": "denny", "reason": "r"}, "did you mean `deny`"),
        ({"id": "a", "verdict": "deny"}, "'reason' is missing"),
        ({"verdict": "deny", "reason": "r"}, "'id' is missing"),
    ],
)
def test_a_mistake_in_a_rule_names_the_fix(data: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        rule_from(data, "kakoi.yaml")


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"flags": ["--all"]}, "names neither `commands` nor `effects`"),
        ({"effects": ["writes-outsid"]}, "did you mean `writes-outside`"),
        (
            {"commands": ["ls"], "operands": ["(x"]},
            "'\\(x' in `operands` is not a valid regular expression",
        ),
        ({"commands": [""]}, "it must be a text or a list of texts"),
        ({"commands": 5}, "commands is 5; it must be a text or a list of texts"),
        ({"commands": ["ls"], "match": {"a": "b"}}, "it must be a text or a list of texts"),
    ],
)
def test_a_rule_that_could_never_apply_is_an_error(about: dict[str, object], says: str) -> None:
    rule = {"id": "a", "verdict": "deny", "reason": "r", **about}
    with pytest.raises(ConfigurationError, match=says):
        tightened(load_policy(), rules=[rule], origin=".kakoi.yaml")


@pytest.mark.parametrize(
    ("about", "command"),
    [
        ({"commands": ["git  status"]}, "git status -s"),
        ({"effects": ["runs-code-file"]}, "python3 build.py"),
        ({"effects": ["code-text"]}, "python3 -c 'print(1)'"),
    ],
)
def test_a_project_may_refuse_what_no_rule_of_ours_minds(
    about: dict[str, object], command: str
) -> None:
    rule = {"id": "a", "verdict": "deny", "reason": "r", **about}
    assert decide(load_policy(), command).allowed
    assert not decide(tightened(load_policy(), rules=[rule], origin="x"), command).allowed


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `coding-agent`"):
        load_policy("coding-agnet")


def test_everything_the_data_says_of_a_program_can_be_read() -> None:
    assert len(known_programs()) > 200
    for program in known_programs():
        assert spec_of(program) is not PLAIN
    assert spec_of("no-such-program") is PLAIN


def specs() -> Iterator[tuple[str, Spec]]:
    """Of every program and subcommand that the data knows."""
    waiting = [(program, spec_of(program)) for program in known_programs()]
    while waiting:
        name, spec = waiting.pop()
        yield name, spec
        waiting += [(f"{name} {sub}", inner) for sub, inner in spec.subcommands.items()]


def test_every_word_of_the_data_means_something() -> None:
    """One that is misspelled would mean nothing, and so allow."""
    effects = {*_known_effects(), *_HANDLERS, *_REFINEMENTS}
    effects |= {"none", "runs-rest", "after-colon-writes", "after-colon-reads"}
    effects |= {"interpreter", "clears"}
    operands = {*_PLAIN_OPERANDS, *_RUNNING_OPERANDS, "copies", "moves", "input-output"}
    operands |= {"not-a-format", "git-urls", "text", "words", "none", "code-node", "code-ruby"}
    operands |= {"runs-script", "runs-script-named", "interpreter"}
    for name, spec in specs():
        said = {*spec.value_effects.values(), *spec.flag_effects.values()}
        assert said <= effects, name
        assert spec.operands in operands, name
        assert spec.other in operands | {""}, name
        assert not spec.reader or spec.reader in _READERS, name
        assert spec.style in get_args(Style), name


# --- The profile that refuses nothing --------------------------------------------------------


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.jsonl")), ids=lambda file: file.name)
def test_under_open_every_command_that_could_run_may_run(file: Path) -> None:
    policy = load_policy("open")
    for line in file.read_text().splitlines():
        command = json.loads(line)["command"]
        decision = decide(policy, command)
        if decision.allowed:
            assert {finding.rule for finding in decision.findings} <= {"unreadable"}, command
        else:
            nothing = decision.findings[0].rule == "empty-command"
            assert nothing or "\0" in command or len(command.encode()) > 64 * 1024, command


@pytest.mark.parametrize(
    "command",
    [
        "echo 'never closed",
        "if true; then ls",
        "bash -c 'if'",
        "a\x01b",
        "\u202e",
        "x\udcff",
        "(" * 99,
        "x" * (64 * 1024 + 1),
    ],
)
def test_under_open_what_cannot_be_read_may_run_and_is_marked(command: str) -> None:
    decision = decide(load_policy("open"), command)
    assert decision.allowed
    assert [(each.rule, each.verdict, each.hint) for each in decision.findings] == [
        ("unreadable", Verdict.ALLOW, "")
    ]
    assert decide(load_policy(), command).verdict is Verdict.DENY


def test_under_open_a_text_for_any_shell_may_run_too() -> None:
    decision = decide(load_policy("open"), "[[ a < b ]] && ((x))", read_by="sh")
    assert decision.allowed


@pytest.mark.parametrize(
    "command", ["", "  ", "# remark", "a\0b", "\x01\0", "\0" * (64 * 1024 + 1)]
)
def test_under_open_what_no_shell_could_run_is_still_an_error(command: str) -> None:
    decision = decide(load_policy("open"), command)
    assert decision.verdict is Verdict.DENY
    assert str(decision.error())


@pytest.mark.parametrize("action", ["read", "list", "write", "remove"])
def test_under_open_every_file_access_is_allowed(action: FileAction) -> None:
    for path in ("/etc/shadow", "/", "/dev/sda", "../../x", ".git/hooks/x", "-rf", "/dev/tcp/a/1"):
        assert decide_access(load_policy("open"), FileAccess(action, path)).findings == ()
        move = FileAccess("move", path, "/etc/x")
        assert decide_access(load_policy("open"), move).findings == ()
    everything = FileAccess("remove", "/", recursive=True)
    assert decide_access(load_policy("open"), everything).findings == ()


def test_under_open_what_is_excluded_or_blocked_stays_so() -> None:
    policy = policy_from(
        PolicySettings(
            profile="open",
            exclude=("curl", "grep"),
            blocked=("git push",),
            block_patterns=("--no-verify",),
            packages="allowlist",
            rules=({"id": "r", "verdict": "ask", "effects": ["writes-outside"], "reason": "no"},),
        ),
        roots=["/w"],
        origin="test",
    )
    refused = ["curl x", "env curl x", "sh -c 'curl x'", "egrep x", "git push -f", "x --no-verify", "pip install x"]  # fmt: skip
    for command in refused:
        assert decide(policy, command).verdict is Verdict.DENY, command
    assert isinstance(decide(policy, "curl x").error(), CommandNotAllowedError)
    assert decide(policy, "touch /etc/x").verdict is Verdict.ASK
    assert decide_access(policy, FileAccess("write", "/etc/x")).verdict is Verdict.ASK
    assert decide(policy, "git status; wget x").allowed


def test_open_has_no_list_that_another_could_replace() -> None:
    lists = AllowedCommands(use_default=False, custom_list=("ls",))
    with pytest.raises(ConfigurationError, match="the profile open has no list of programs"):
        load_policy("open", allowed=lists)
    added = load_policy("open", allowed=AllowedCommands(additional=("frob",)))
    assert decide(added, "frob; curl x").allowed


def test_open_is_never_the_default() -> None:
    assert DEFAULT_PROFILE == "coding-agent"
    assert not any(load_policy(name).is_open for name in PROFILES if name != "open")
    assert not load_policy().is_open
    assert PolicySettings().profile == DEFAULT_PROFILE


def test_open_describes_itself() -> None:
    policy = load_policy("open")
    assert "every command is allowed unless a rule refuses it" in policy_as_text(policy)
    assert policy_as_dict(policy)["any_command"] is True
    assert policy_as_dict(policy)["unreadable"] == "allow"
    assert policy_as_dict(load_policy())["any_command"] is False
    assert prompt_commands(policy).startswith("Any command")
