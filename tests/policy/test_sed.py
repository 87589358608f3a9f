"""The reader of sed scripts, held against GNU sed itself.

`sed --sandbox` refuses a script that has e, r or w commands before it runs anything, so it is
the judge here: what it refuses must be reported, and what it accepts should not be.
"""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakoi.policy.effects.languages.code_effect import CodeEffect, CodeEffectKind
from kakoi.policy.effects.languages.sed import sed_effects

HARMLESS = [
    "",
    ";; ;",
    "# only a comment",
    "#n\np",
    "s/old/new/",
    "s/old/new/g",
    "s/old/new/2gp",
    "s/old/new/Ig",
    "s/w/e/; s/e/w/",
    "s|/usr/local|/opt|g",
    "s,a\\,b,c,",
    "s#a#b#;s@a@b@;s:a:b:;s_a_b_;s!a!b!",
    "s/\\//-/g",
    "s/[^/]*$//",
    "s/[/]/x/",
    "s/[]/]/x/",
    "s/[^]/]/x/",
    "s/[[:space:]/]*$//",
    "s/[\\/]/x/",
    "s/\\[/\\]/",
    "s/[ \t]*$//",
    "s/^[ \t]*//;s/[ \t]*$//",
    's/.*/"&"/',
    "s/\\(.*\\)=\\(.*\\)/\\2=\\1/",
    "s/a/b/ ; s/c/d/ # done",
    "s/a/x\\\ny/",
    "s/a/b/;;;p",
    "s/a/b/w /dev/stdout",
    "s/x/y/w /dev/stderr",
    "w /dev/stdout",
    "W /dev/stderr",
    "y/abc/xyz/",
    "y/a\\/b/xyz/",
    "y|[]|()|;p",
    "/^#/d",
    "/^$/d",
    "/^\\s*$/d",
    "/^#/d;/^$/d",
    "/warning/p",
    "/foo/!d",
    "/foo/!s/a/b/",
    "\\|/etc/passwd|d",
    "\\,a\\,b,p",
    "1d",
    "$d",
    "1,10p",
    "10,$d",
    "2,4!d",
    "1!G;h;$!d",
    "5q",
    "q5",
    "/x/Q",
    "$=",
    "$!N",
    "$!N;$!D",
    "$!N;s/\\n/ /",
    "$!{h;d}",
    "0,/re/d",
    "0~3d",
    "1~2d",
    "2,~4p",
    "/start/,/end/p",
    "/start/,/end/{/start/n;/end/!d}",
    "/start/,+2d",
    "/re/I,+3s/a/b/2gp",
    "/a/ I , /b/ M p",
    "/foo/{n;d}",
    "/foo/{n;d;}",
    "/a/{/b/{/c/d}}",
    "{p;p}",
    "{ p ; p } ; p",
    "n;n;s/./x/",
    "G;h",
    "x;p;x",
    "l",
    "l 5;p",
    "F",
    "z;s/^$/x/",
    ":a;N;$!ba;s/\\n/ /g",
    ":a\ns/^\\(\\s*\\)\\s/\\1x/\nta",
    ": loop ; s/a/b/ ; t loop",
    ":a;s/x/y/;Ta",
    "/a/{s/a/b/;b};s/c/d/",
    "/a/{ba};p;:a",
    "v 4.2",
    "v;p",
    "a text",
    "a\\ text",
    "a\\\ntext",
    "i hello",
    "1i #!/bin/sh",
    "$a last line",
    "c replacement",
    "/x/c\\\none\\\ntwo",
    "a w file",
    "a\\\nw file\\\ne ls",
    "a one\\\nw two",
    "/x/a e rm -rf /\np",
    "i\\",
    "$!{a foo\n}",
    "s/$/\\r/",
    "/[0-9]\\{3\\}/p",
    "s/\\x41/\\o101/;s/\\d065/\\cA/",
    "s\\a\\b\\",
    "sxaxbx",
    "/BEGIN/,/END/{\n  # inner\n  s/a/b/\n  p\n}",
]

EFFECTS = [
    ("e", [(CodeEffectKind.RUNS, None)]),
    ("e date", [(CodeEffectKind.RUNS, "date")]),
    ("1e rm -rf /", [(CodeEffectKind.RUNS, "rm -rf /")]),
    ("e\\\nid", [(CodeEffectKind.RUNS, "id")]),
    ("/x/{e id\n}", [(CodeEffectKind.RUNS, "id")]),
    ("$!e id", [(CodeEffectKind.RUNS, "id")]),
    ("s/a/b/e", [(CodeEffectKind.RUNS, None)]),
    ("s/a/b/ge", [(CodeEffectKind.RUNS, None)]),
    ("s/a/b/2ep;p", [(CodeEffectKind.RUNS, None)]),
    ("s/.*/id/ e", [(CodeEffectKind.RUNS, None)]),
    ("s,[,],x,e", [(CodeEffectKind.RUNS, None)]),
    ("s/[\\]/x/e", [(CodeEffectKind.RUNS, None)]),
    ("s/\\[/]/e", [(CodeEffectKind.RUNS, None)]),
    ("w out.txt", [(CodeEffectKind.WRITES, "out.txt")]),
    ("w/etc/passwd", [(CodeEffectKind.WRITES, "/etc/passwd")]),
    ("w out;p", [(CodeEffectKind.WRITES, "out;p")]),
    ("W out", [(CodeEffectKind.WRITES, "out")]),
    ("/a/,/b/w x", [(CodeEffectKind.WRITES, "x")]),
    ("/a/Iw x", [(CodeEffectKind.WRITES, "x")]),
    ("s/a/b/w out", [(CodeEffectKind.WRITES, "out")]),
    ("s/a/b/gpw /etc/cron.d/x", [(CodeEffectKind.WRITES, "/etc/cron.d/x")]),
    ("s/a/b/w /dev/stdout\nw x", [(CodeEffectKind.WRITES, "x")]),
    ("s/a/b/ew out", [(CodeEffectKind.RUNS, None), (CodeEffectKind.WRITES, "out")]),
    ("w /dev/stdoutx", [(CodeEffectKind.WRITES, "/dev/stdoutx")]),
    ("r header.txt", [(CodeEffectKind.READS, "header.txt")]),
    ("0r header.txt", [(CodeEffectKind.READS, "header.txt")]),
    ("$r/etc/shadow", [(CodeEffectKind.READS, "/etc/shadow")]),
    ("R /etc/shadow", [(CodeEffectKind.READS, "/etc/shadow")]),
    ("a text\ne id", [(CodeEffectKind.RUNS, "id")]),
    ("a\\\\\ne id", [(CodeEffectKind.RUNS, "id")]),
    ("a\ne id", [(CodeEffectKind.RUNS, "id")]),
    ("a x\\\\\ne id", [(CodeEffectKind.RUNS, "id")]),
    ("a\\\none\\\ntwo\ne id", [(CodeEffectKind.RUNS, "id")]),
    ("# comment\\\ne id", [(CodeEffectKind.RUNS, "id")]),
    ("ba;e id\n:a", [(CodeEffectKind.RUNS, "id")]),
    (":a w x", [(CodeEffectKind.WRITES, "x")]),
    ("y/[/]/;e id", [(CodeEffectKind.RUNS, "id")]),
    ("s/x/y/;e id", [(CodeEffectKind.RUNS, "id")]),
    ("s/\\n/ /\ne id", [(CodeEffectKind.RUNS, "id")]),
    ("\\xaxe id", [(CodeEffectKind.RUNS, "id")]),
    (
        "e id\nr a\nw b",
        [(CodeEffectKind.RUNS, "id"), (CodeEffectKind.READS, "a"), (CodeEffectKind.WRITES, "b")],
    ),
]

UNREADABLE = [
    "k",
    "s/a/b",
    "s/a/b/k",
    "s/[[:]/]/x/",
    "s/[a",
    "y/a",
    "/a",
    "{p",
    "p}",
    "pp",
    "1,p",
    "1!!p",
    "sµaµbµ",
    "s\na\nb\n",
    ":a\ra e id",
    "s",
    "1",
]


def shape(effects: tuple[CodeEffect, ...]) -> list[tuple[CodeEffectKind, str | None]]:
    return [(effect.kind, effect.target) for effect in effects]


def verdict_of_sed(script: str, folder: Path) -> str:
    """`refused` (e, r or w), `accepted`, or `invalid`; nothing in the script can act."""
    done = None
    for _ in range(3):
        try:
            done = subprocess.run(
                ["sed", "--sandbox", "-e", script],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=folder,
                timeout=5,
                check=False,
                env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            )
            break
        except subprocess.TimeoutExpired:
            # No script runs on empty input, so it was the machine that was slow.
            continue
    assert done is not None, "sed did not even start"
    if b"disabled in sandbox mode" in done.stderr:
        return "refused"
    return "invalid" if done.stderr else "accepted"


@pytest.mark.parametrize("script", HARMLESS)
def test_an_everyday_script_has_no_effect(script: str) -> None:
    assert sed_effects(script) == ()


@pytest.mark.parametrize(("script", "expected"), EFFECTS)
def test_a_command_that_reaches_outside_is_reported(
    script: str, expected: list[tuple[CodeEffectKind, str | None]]
) -> None:
    assert shape(sed_effects(script)) == expected


@pytest.mark.parametrize("script", UNREADABLE)
def test_an_invalid_sed_script_is_unreadable(script: str) -> None:
    assert shape(sed_effects(script)) == [(CodeEffectKind.UNREADABLE, None)]


def test_what_came_before_an_unreadable_place_is_still_reported() -> None:
    assert shape(sed_effects("e id\nk")) == [
        (CodeEffectKind.RUNS, "id"),
        (CodeEffectKind.UNREADABLE, None),
    ]


def test_the_snippet_is_the_command_on_one_short_line() -> None:
    assert sed_effects("p;/x/ w out")[0].text == "/x/ w out"
    (effect,) = sed_effects("s/" + "a" * 500 + "/b/e")
    assert len(effect.text) <= 80


@pytest.mark.parametrize("script", [script for script in HARMLESS if "/dev/std" not in script])
def test_sed_agrees_that_everyday_scripts_are_harmless(script: str, tmp_path: Path) -> None:
    assert verdict_of_sed(script, tmp_path) == "accepted"


@pytest.mark.parametrize("script", [script for script, _ in EFFECTS])
def test_sed_agrees_that_reaching_scripts_are_not(script: str, tmp_path: Path) -> None:
    assert verdict_of_sed(script, tmp_path) == "refused"


# Pieces that meet in all orders: most of the sentences are nonsense, some are traps.
PIECES = st.sampled_from(
    [
        *["/", "\\", "[", "]", "^", "[:", ":]", "[.", ".]", "[=", "=]", "alpha", "-"],
        *["\n", "\\\n", ";", " ", "\t", "{", "}", "#", ",", "!", "|", "µ", "\r", "\f"],
        *["a", "i", "c", "e", "w", "r", "W", "R", "s", "y", "p", "d", "q", "l", "v", "F", "z"],
        *[":", "b", "t", "T", "n", "N", "g", "I", "M", "=", "$", "0", "1", "2", "+", "~", "x"],
    ]
)
SCRAPS = st.lists(PIECES, max_size=14).map("".join)
TEXTS = st.text("ab/[]\\^:.|,;&\n {}we", max_size=8)
ADDRESSES = st.sampled_from(
    ["", "1", "$", "/a/", "/a/I", "\\,a,", "1,2", "/[/]/,+1", "0,/b/", "1~2", "2!", "/\\//"]
)
DELIMITERS = st.sampled_from("/|,#x")
FLAGS = st.sampled_from(["", "g", "p", "2", "e", "I", "w f", " g", "m;", "}", "#c"])
SUBSTITUTIONS = st.builds(
    lambda delimiter, old, new, flags: f"s{delimiter}{old}{delimiter}{new}{delimiter}{flags}",
    *(DELIMITERS, TEXTS, TEXTS, FLAGS),
)
OTHERS = st.one_of(
    st.sampled_from(["p", "d", "n", "N;N", "{p}", "{", "}", "q1", "l 2", "#c", "y/a/b/", "e", "="]),
    st.builds("{}{}".format, st.sampled_from(["a", "a\\", "a\\\n", "i ", "c\\ "]), TEXTS),
    st.builds("{} {}".format, st.sampled_from([":", "b", "t", "v", "w", "r", "R", "e"]), TEXTS),
)
COMMANDS = st.builds("{}{}".format, ADDRESSES, st.one_of(SUBSTITUTIONS, OTHERS))
SCRIPTS = st.builds(
    lambda commands, glue: glue.join(commands),
    st.lists(COMMANDS, min_size=1, max_size=4),
    st.sampled_from([";", "\n", " ; ", ""]),
)


@settings(max_examples=600)
@given(script=st.one_of(SCRAPS, SCRIPTS))
def test_the_reading_agrees_with_sed(script: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    effects = sed_effects(script)
    verdict = verdict_of_sed(script, tmp_path_factory.getbasetemp())
    if verdict == "refused":
        assert effects
    if verdict == "accepted":
        assert [effect for effect in effects if effect.kind is not CodeEffectKind.UNREADABLE] == []


@given(script=st.text())
def test_any_text_is_answered(script: str) -> None:
    sed_effects(script)


@pytest.mark.parametrize(
    "seed",
    [
        "[",
        "s/",
        "s/[",
        "{",
        "}",
        "a\\\n",
        "\\",
        "/",
        "[[:",
        "s/a/b/w",
        "e",
        "y/",
        "1,",
        ":",
        "'",
        "\0",
    ],
)
def test_64_kib_of_anything_is_answered(seed: str) -> None:
    sed_effects(seed * (65536 // len(seed)))
