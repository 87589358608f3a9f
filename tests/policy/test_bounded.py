"""Texts made to keep the judgement busy: each is judged in a process that has a minute for all."""

import shlex
import subprocess
import sys

import pytest

_LONG = 60_000


def _nested(levels: int) -> str:
    """A text in a text in a text, each of which has sixteen variants."""
    text = "ls"
    for level in range(levels):
        values = "; ".join(f"v{level}={value}" for value in range(16))
        text = f"{values}; sh -c {shlex.quote(text)} $v{level}"
    return text


def _values(width: int) -> str:
    """A value made of values made of values: its text would be larger than any memory."""
    lines = ["a=x"]
    for name, of in ("ba", "cb", "dc", "ed"):
        lines.append(f'{name}="' + f"${of}" * width + '"')
    return "; ".join([*lines, 'echo "$e"'])


CASES = {
    "values of values": _values(100),
    "values of values without quotes": _values(100).replace('"', ""),
    "a pattern with two ways through": 'MAKEFLAGS="' + "j " * 60 + '!" make',
    "blanks in a list of options": 'NODE_OPTIONS="--expose-gc' + " " * _LONG + 'x" node a.js',
    "options within an option": 'JAVA_TOOL_OPTIONS="-Da=' + "-Xmx1" * 8000 + '!" java A',
    "one letter, many times": "ps " + "e" * _LONG + "!",
    "many names of plugins": "mvn " + "exec-maven-" * 5000,
    "empty lines for a database": f"sqlite3 a.db '{chr(10) * _LONG}'",
    "words for a database": "sqlite3 a.db '" + "attach " * 8000 + "'",
    "empty lines behind a pipe": "a|" + "\n" * _LONG + "b",
    "a long name of a package": "npm install " + "a@" * (_LONG // 4) + "b." * (_LONG // 4),
    "a walk with a long chain": "python3 -c 'for p in q.rglob(1): p" + ".unlink()" * 5000 + "'",
    "texts in texts": _nested(4),
    "many texts": ";".join("sh -c 'echo $x'" for _ in range(700)),
    "many traps": ";".join("trap 'echo $x' EXIT" for _ in range(500)),
    "many commands of find": "find . " + " ".join(["-exec sh -c 'echo $1' _ {} \\;"] * 300),
    "a long array, used often": "a=("
    + "b " * 1400
    + "); "
    + "; ".join(['cat "${a[@]}"'] * 300),
}  # fmt: skip

_JUDGE = """
import sys
from kakoi.policy.decide import decide
from kakoi.policy.profiles import load_policy
print(decide(load_policy(), sys.stdin.read()).verdict.value)
"""


@pytest.mark.parametrize("name", CASES)
def test_a_text_made_to_keep_the_judgement_busy_is_judged_all_the_same(name: str) -> None:
    judged = subprocess.run(
        [sys.executable, "-c", _JUDGE],
        input=CASES[name],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert judged.stdout.strip() in ("allow", "ask", "deny")
