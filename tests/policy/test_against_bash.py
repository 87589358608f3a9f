"""The engine against real bash: whatever reached a forbidden program must have been refused.

Snippets are generated around a program that is on no list, and run by bash in a throw-away
directory whose PATH holds only stubs that leave a mark. Nothing real can be reached.
"""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from kakoi.policy.decide import decide
from kakoi.policy.profiles import load_policy

FORBIDDEN = "zzforbidden"
STUBS = "ls cat grep env xargs find sort head true-ish git nice timeout nohup sed awk tee sh bash".split()
SNIPPETS = 700


@pytest.fixture
def arena(tmp_path: Path) -> Path:
    """A directory with stubs first and alone on PATH; bash itself is called by its full path."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    bash = shutil.which("bash")
    assert bash is not None
    mark = tmp_path / "mark"
    real = {"env": "env", "xargs": "xargs", "find": "find", "nice": "nice", "timeout": "timeout", "nohup": "nohup",
            "sh": "sh", "bash": "bash", "sed": "sed", "awk": "awk"}  # fmt: skip
    for name in STUBS:
        found = shutil.which(real.get(name, ""))
        if found:
            (stubs / name).symlink_to(found)
        else:
            (stubs / name).write_text(f"#!{bash}\nbuiltin true\n")
            (stubs / name).chmod(0o755)
    (stubs / FORBIDDEN).write_text(f"#!{bash}\nbuiltin echo x >> {mark}\n")
    (stubs / FORBIDDEN).chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path


def reaches(arena: Path, snippet: str) -> bool:
    """Whether bash, given the snippet, started the forbidden program."""
    mark = arena / "mark"
    mark.unlink(missing_ok=True)
    bash = shutil.which("bash")
    assert bash is not None
    with subprocess.Popen(
        [bash, "--norc", "--noprofile", "-c", snippet],
        cwd=arena / "work",
        env={"PATH": str(arena / "bin"), "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(timeout=10)
    return mark.exists()


class Snippets:
    """Random shell around the forbidden name: constructs, quoting, expansions, indirections."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def name(self) -> str:
        """A spelling of the forbidden name."""
        name = FORBIDDEN
        cut = self.random.randrange(1, len(name))
        head, tail = name[:cut], name[cut:]
        return self.pick(
            name, f"'{name}'", f'"{name}"', f"{head}''{tail}", f"'{head}'\"{tail}\"", f"{head}\\{tail}",
            "$'" + "".join(f"\\x{ord(c):02x}" for c in name) + "'", f"{head}\\\n{tail}", f"{{{name},}}", f"${{x:-{name}}}",
            f"$(echo {name})", f"`printf %s {name}`", f"{head}${{undefined}}{tail}", f"{head}$(){tail}", f"${{y:={name}}}",
            f'"$(printf \'%s%s\' {head} {tail})"', f"{head}{{{tail},}}", f"$'{head}'{tail}",
        )  # fmt: skip

    def command(self, depth: int) -> str:
        if depth <= 0:
            return self.name() + self.pick("", " a", " -x 'b c'", " 2>/dev/null", " < /dev/null")
        inner = self.command(depth - 1)
        quoted = "'" + inner.replace("'", "'\\''") + "'"
        return self.pick(
            f"{inner}; ls", f"ls; {inner}", f"true && {inner}", f"false || {inner}", f"ls | {inner}", f"{inner} | cat",
            f"({inner})", f"{{ {inner}\n}}", f"if true; then {inner}\nfi", f"if {inner}\nthen :; fi",
            f"for i in a; do {inner}\ndone", f"while {inner}\nbreak; do :; done", f"case x in x) {inner}\n;; esac",
            f"case y in x) :;& y) {inner}\n;; esac", f"f() {{ {inner}\n}}; f", f"function g {{ {inner}\n}}; g",
            f"echo $({inner}\n)", f'echo "$({inner}\n)"', f"cat <({inner}\n)", f"x=$({inner}\n)", f"x=$({inner}\n) ls",
            f"echo ${{q:-$({inner}\n)}}", f"cat <<E\n$({inner}\n)\nE", f"cat <<< $({inner}\n)", f"echo $(( $({inner}\n) + 0 ))",
            f"a=([$({inner}\n)0]=1)", f"[[ -n $({inner}\n) ]]", f"bash -c {quoted}", f"sh -c {quoted}", f"eval {quoted}",
            f"env bash -c {quoted}", f"trap {quoted} EXIT", f"x={quoted}; eval \"$x\"", f"x={quoted}; bash -c \"$x\"",
            f"echo {quoted} | bash", f"bash <<'E'\n{inner}\nE", f"bash <<< {quoted}", f"env -S {quoted}",
            f"xargs -I{{}} bash -c {quoted} < <(echo a)", f"find . -maxdepth 0 -exec bash -c {quoted} \\;",
            f"x='a[$({inner})]'; echo $((x))", f"x={quoted}; $x", f"timeout 5 bash -c {quoted}", f"coproc {inner}\nwait",
            f"p() {{ \"$@\"; }}; p bash -c {quoted}", f"set -- bash -c {quoted}; \"$@\"", f"time {inner}", f"! {inner}",
            f"PS4='$({inner})'; set -x; ls", f"alias q={quoted}; shopt -s expand_aliases\nq", f"source <(echo {quoted})",
            f"printf -v cmd %s {quoted}; eval \"$cmd\"", f"read -r c <<< {quoted}; bash -c \"$c\"", f"ls > $({inner}\n)/dev/null",
            f"declare -a v=({quoted}); bash -c \"${{v[0]}}\"", f"mapfile -t m <<< {quoted}; bash -c \"${{m[0]}}\"",
        )  # fmt: skip


@pytest.mark.requirement("A-075")
@pytest.mark.slow("starts bash for each of many texts")
def test_whatever_reaches_a_forbidden_program_in_bash_was_refused(arena: Path) -> None:
    policy = load_policy()
    snippets = Snippets(seed=20261115)
    reached = 0
    holes = []
    for number in range(SNIPPETS):
        snippet = snippets.command(number % 4)
        decision = decide(policy, snippet, cwd="/workspace/project")
        # Only what would be allowed can be a hole; a sample of the rest shows that bash gets there.
        if (decision.allowed or number % 5 == 0) and reaches(arena, snippet):
            reached += 1
            if decision.allowed:
                holes.append(snippet)
    assert holes == []
    assert reached > SNIPPETS // 20
