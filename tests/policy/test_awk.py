"""The reader of awk programs, held against gawk itself.

`gawk --sandbox` refuses system(), redirections, new ARGV entries and extensions before they act,
so it is the judge here. scripts/setup installs gawk; without it only the comparison is skipped.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakoi.policy.effects.languages.awk import awk_effects
from kakoi.policy.effects.languages.code_effect import CodeEffect, CodeEffectKind

RUNS, WRITES, READS = CodeEffectKind.RUNS, CodeEffectKind.WRITES, CodeEffectKind.READS

HARMLESS = [
    "",
    "1",
    "{print}",
    "{print $1}",
    "{ print $1, $NF }",
    '{print $1","$2}',
    '{print NR": "$0}',
    "END{print NR}",
    "END { print $0 }",
    "NR==1",
    "NR==1{print;exit}",
    "NR>1",
    "NR > 1 { print $2 }",
    "NR>=2 && NR<=5",
    "$3 > 100",
    "$3 > 100 { print $1 }",
    '$1 == "x" || $2 >= 3',
    "!seen[$0]++",
    "!/^#/",
    "/foo/",
    "/foo/ {print $2}",
    "/start/,/end/",
    "/a\\/b/ {print}",
    "/[/]/ {print}",
    "/[^/]+$/",
    "/[[:space:]/]+/",
    "/[]/]/",
    "/\\|>system\\(/ {print}",
    '/"/ {print}',
    '/#/ {print "#"} # not a comment inside',
    '# system("id")\n{print}',
    '{print "system(id) | sh > file"}',
    'BEGIN{FS=":"} {print $1}',
    'BEGIN{FS=OFS="\\t"} {$2="x"} 1',
    'BEGIN { printf "%d\\n", 3/2 }',
    'BEGIN { printf("%s %s\\n", "a", "b") }',
    "BEGIN { x = 10 / 2 / 5; y /= 2; print x, y }",
    "BEGIN { print 1/3 }",
    "BEGIN { print (1 > 2) }",
    'BEGIN { print (1 > 2) ? "a" : "b" }',
    "{ print ($1 > 2), ($2 > 3) }",
    "{ print($1 > $2 ? $1 : $2) }",
    "{ x = $1 > 2; print x }",
    "{ if ($3 > 100) print $1 }",
    "{ if ($3 > max) max = $3 } END { print max }",
    "{ if ($1 > 0) print $1; else if ($1 < 0) print -$1; else print 0 }",
    "{ while (i > 0) { print i; i-- } }",
    '{ for (i = NF; i > 0; i--) printf "%s ", $i; print "" }',
    "{ for (i=1; i<=NF; i++) s += $i } END { print s/NR }",
    "{ a[$1] += $2 } END { for (k in a) print k, a[k] }",
    "{ a[$1]++ } END { for (k in a) if (a[k] > 1) print k }",
    "{ print length }",
    "length > 72",
    'length($0) > 80 { print FILENAME ":" FNR }',
    "{ print length($1) / 2 }",
    '{ print substr($0, 1, 10), index($0, "x"), toupper($1) }',
    '{ gsub(/[ \\t]+$/, ""); print }',
    '{ gsub(/\\//, "-") } 1',
    '{ sub(/^\\/usr/, "/opt"); print }',
    "{ n = split($0, parts, /[,;|>]/); print parts[n] }",
    "{ if (match($0, /[0-9]+/)) print substr($0, RSTART, RLENGTH) }",
    "$1 ~ /^a/ && $2 !~ /b$/",
    '$0 ~ "a|b"',
    '{ $1 = ""; print substr($0, 2) }',
    '{ sum += $1 } END { printf "%.2f\\n", sum / NR }',
    "{ print $1 > 5 ? 1 : 0 }".replace("$1 > 5", "($1 > 5)"),
    "function f(x) { return x / 2 } { print f($1) / 3 }",
    "function max(a, b) { return a > b ? a : b }\n{ print max($1, $2) }",
    "{ getline; print }",
    "{ getline line; print line }",
    "{ while ((getline line) > 0) n++ } END { print n }",
    "NR % 2 { getline x; print x, $0 }",
    "{ getline x; if (x < 3) print x }",
    '{ print "err" > "/dev/stderr" }',
    '{ print "err" > ("/dev/stderr") }',
    '{ print >> "/dev/stdout" }',
    '{ print > "/dev/null" }',
    '{ print "a"; close("x"); fflush() }',
    "BEGIN { for (i = 1; i < ARGC; i++) print ARGV[i] }",
    'BEGIN { n = ARGV[1]; ARGV[1] = ""; delete ARGV[2]; if (2 in ARGV) print length(ARGV) }',
    'BEGIN { PROCINFO["sorted_in"] = "@ind_str_asc" } { a[$1] } END { for (k in a) print k }',
    'BEGIN { print ENVIRON["HOME"]; srand(); print rand() }',
    "BEGIN { IGNORECASE = 1 } /foo/ || /bar/",
    "FNR==NR { a[$1]=$2; next } $1 in a { print $0, a[$1] }",
    "NR==FNR{a[$0];next} !($0 in a)",
    '{ print > "/dev/stderr" } # > "x"',
    '{ printf "%s%s", $0, (NR % 3 ? "," : "\\n") }',
    "{ print $1,\n  ($2 > 3) }",
    '{ a = "x" \\\n  "y"; print a }',
    "{ x++ / 2; print x }",
    'BEGIN{RS="";ORS="\\n\\n"}/foo/',
    "{$1=$1}1",
    '{print strftime("%F", $1)}',
    '{ print gensub(/(a)(b)/, "\\\\2\\\\1", "g") }',
    'BEGIN { if (!(3 in a)) print "no" }',
    "{ print $(NF-1), $NF/2, -$1 ^ 2 }",
    '@namespace "x"\nBEGIN { y = 1 }',
    'BEGIN { r = @/a"b/; print typeof(r) }',
    "BEGIN { while (i++ < 3) print i }",
    "BEGIN { do { i++ } while (i < 3); print i }",
    "/a/ ? /b/ : /c/ { print }",
    "\r\n{ print }\r\n",
    "{ print $1 }\n\n/x/ { print $2 }\nEND { print NR }",
]

EFFECTS = [
    ('BEGIN { system("id") }', [(RUNS, "id")]),
    ('BEGIN { system ("id") }', [(RUNS, "id")]),
    ('BEGIN { system("") }', [(RUNS, "")]),
    ('{ system("rm " $1) }', [(RUNS, None)]),
    ('{ if (system("test -f x") == 0) print }', [(RUNS, "test -f x")]),
    ('BEGIN { x = "id"; system(x) }', [(RUNS, None)]),
    ('BEGIN { system("echo \\047hi\\047 \\"x\\"") }', [(RUNS, "echo 'hi' \"x\"")]),
    ('BEGIN { system("\\x69d") }', [(RUNS, None)]),
    ('BEGIN{print 1/2;system("id")}', [(RUNS, "id")]),
    ('BEGIN { if (1) /"/; system("id"); "/" }', [(CodeEffectKind.UNREADABLE, None)]),
    ('/"/ { system("id") } /"/', [(RUNS, "id")]),
    ('BEGIN { a = 1; print a /2; system("id") # /\n }', [(RUNS, "id")]),
    ('BEGIN { print a[1] / 2; system("id") # /\n }', [(RUNS, "id")]),
    ('BEGIN { x++ / 2; system("id") # /\n }', [(RUNS, "id")]),
    ('/[]"/]/ { system("id") }', [(RUNS, "id")]),
    ('/[\\]/"]/ { system("id") }', [(RUNS, "id")]),
    ('{ print $1 | "sort" }', [(RUNS, "sort")]),
    ('{ print | "sort -u" } END { close("sort -u") }', [(RUNS, "sort -u")]),
    ('{ print $1 | "cat 1>&2" }', [(RUNS, "cat 1>&2")]),
    ("{ print | cmd }", [(RUNS, None)]),
    ('{ printf "%s\\n", $1 | "sh" }', [(RUNS, "sh")]),
    ('{ print "x" | "mail " $1 }', [(RUNS, None)]),
    ('{ print (1)(2) | ("sh") }', [(RUNS, "sh")]),
    ('BEGIN { "date" | getline }', [(RUNS, "date")]),
    ('BEGIN { "date" | getline d; print d }', [(RUNS, "date")]),
    ('BEGIN { while (("ls" | getline f) > 0) print f }', [(RUNS, "ls")]),
    ("BEGIN { cmd | getline }", [(RUNS, None)]),
    ('BEGIN { "ls " dir | getline }', [(RUNS, None)]),
    ('BEGIN { dir "ls" | getline }', [(RUNS, None)]),
    ('BEGIN { "sort" |& getline x }', [(RUNS, "sort")]),
    ('{ print |& "sort" }', [(RUNS, "sort")]),
    ('BEGIN { print "x" |& "/inet/tcp/0/h/80" }', [(WRITES, "/inet/tcp/0/h/80")]),
    ('BEGIN { "/inet/tcp/0/h/80" |& getline }', [(WRITES, "/inet/tcp/0/h/80")]),
    ('BEGIN { s = "/inet/tcp/0/h/80"; print |& s }', [(RUNS, None)]),
    ('{ print $1 > "out" }', [(WRITES, "out")]),
    ('{ print $1 >> "out" }', [(WRITES, "out")]),
    ('{ print > "out" }', [(WRITES, "out")]),
    ('{ print>"out" }', [(WRITES, "out")]),
    ('{ printf "x" > "/etc/passwd" }', [(WRITES, "/etc/passwd")]),
    ('{ printf("x") > "out" }', [(WRITES, "out")]),
    ('{ print > $1".txt" }', [(WRITES, None)]),
    ('{ print > "a" "b" }', [(WRITES, None)]),
    ('{ print > ("a" $1) }', [(WRITES, None)]),
    ("{ print $1, $2 > 3 }", [(WRITES, None)]),
    ('{ print ($1 > 2) > "out" }', [(WRITES, "out")]),
    ('{ print (1)(2) > "out" }', [(WRITES, "out")]),
    ('{ print a[1], f(2) > "out" }', [(WRITES, "out")]),
    ("{ print $1 > 5 ? 1 : 0 }", [(WRITES, None)]),
    ('{ print a ? b : c > "out" }', [(WRITES, "out")]),
    ('{ print 1 in a > "out" }', [(WRITES, "out")]),
    ('{ print $1,\n  $2 > "out" }', [(WRITES, "out")]),
    ('{ print $1 \\\n > "out" }', [(WRITES, "out")]),
    ('{ print a ?\n b :\n c > "out" }', [(WRITES, "out")]),
    ('{ if ($1 > 2) print > "out" }', [(WRITES, "out")]),
    ('{ print "x" > "/dev/" "stderr" }', [(WRITES, None)]),
    ('{ print "x" > "/dev/stderr"; print > "y" }', [(WRITES, "y")]),
    ('BEGIN { while ((getline line < "/etc/passwd") > 0) print }', [(READS, "/etc/passwd")]),
    ('BEGIN { getline < "f" }', [(READS, "f")]),
    ("BEGIN { getline < ARGV[1] }", [(READS, None)]),
    ("BEGIN { getline x < f }", [(READS, None)]),
    ('BEGIN { getline a[i, 1] < "f" }', [(READS, "f")]),
    ('BEGIN { getline $1 < "f" }', [(READS, "f")]),
    ('BEGIN { getline $(i + 1) < "f" }', [(READS, "f")]),
    ("BEGIN { if (getline < 0) print }", [(READS, None)]),
    ('BEGIN { getline < "/inet/tcp/0/h/80" }', [(WRITES, "/inet/tcp/0/h/80")]),
    ('BEGIN { ARGV[1] = "/etc/passwd"; ARGC = 2 } { print }', [(READS, "/etc/passwd")]),
    ("BEGIN { ARGV[ARGC++] = f }", [(READS, None)]),
    ('BEGIN { awk::ARGV[1] = "f" }', [(READS, "f")]),
    ('BEGIN { split("a b", ARGV) }', [(READS, None)]),
    ('BEGIN { sub(/^/, "/etc/passwd", ARGV[1]) }', [(READS, None)]),
    ('BEGIN { SYMTAB["ARGV"][1] = "x" }', [(CodeEffectKind.UNREADABLE, None)]),
    ('@load "filefuncs"\nBEGIN { }', [(CodeEffectKind.LOADS, "filefuncs")]),
    ('@include "lib.awk"', [(CodeEffectKind.LOADS, "lib.awk")]),
    ('BEGIN { f = "system"; @f("id") }', [(CodeEffectKind.UNREADABLE, None)]),
    (
        'BEGIN { "date" | getline; print > "out"; system("id") }',
        [(RUNS, "date"), (WRITES, "out"), (RUNS, "id")],
    ),
]

UNREADABLE = [
    '{ print "unterminated }',
    "/unterminated",
    "/[/",
    "/[[:]/",
    "/[[.a.]]/",
    "{ print length / 2 }",
    "{ getline / 2 }",
    'case / 1; system("id") #/',
    "{ print 'x' }",
    "{ print `id` }",
    '{ print \\ # c\n > "x" }',
    '{ sys\rtem("id") }',
    "{ print 1\f}",
    "\0",
]


def shape(effects: tuple[CodeEffect, ...]) -> list[tuple[CodeEffectKind, str | None]]:
    return [(effect.kind, effect.target) for effect in effects]


@pytest.mark.parametrize("program", HARMLESS)
def test_an_everyday_program_has_no_effect(program: str) -> None:
    assert awk_effects(program) == ()


@pytest.mark.parametrize(("program", "expected"), EFFECTS)
def test_a_program_that_reaches_outside_is_reported(
    program: str, expected: list[tuple[CodeEffectKind, str | None]]
) -> None:
    assert shape(awk_effects(program)) == expected


@pytest.mark.parametrize("program", UNREADABLE)
def test_what_the_awks_read_differently_or_not_at_all_is_unreadable(program: str) -> None:
    assert shape(awk_effects(program))[-1] == (CodeEffectKind.UNREADABLE, None)


def test_the_snippet_starts_where_the_effect_does() -> None:
    assert awk_effects('{ x = 1; system("id") }\nEND { }')[0].text == 'system("id") }'


# --- gawk has the last word ------------------------------------------------------------------

GAWK = shutil.which("gawk") or ""
needs_gawk = pytest.mark.skipif(not GAWK, reason="gawk is not installed; scripts/setup does it")


def verdict_of_gawk(program: str, folder: Path) -> str:
    """`refused` by the sandbox, `accepted`, or `invalid`; nothing in the program can act."""
    try:
        done = subprocess.run(
            [GAWK, "--sandbox", "--", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=folder,
            timeout=5,
            check=False,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        )
    except subprocess.TimeoutExpired:
        return "accepted"
    if b"sandbox mode" in done.stderr:
        return "refused"
    return "invalid" if done.returncode == 1 and done.stderr else "accepted"


def reports_standard_output_only(program: str) -> bool:
    return any(name in program for name in ("/dev/std", "/dev/null"))


@needs_gawk
@pytest.mark.parametrize(
    "program", [program for program in HARMLESS if not reports_standard_output_only(program)]
)
def test_gawk_agrees_that_everyday_programs_are_harmless(program: str, tmp_path: Path) -> None:
    assert verdict_of_gawk(program, tmp_path) == "accepted"


@needs_gawk
@pytest.mark.parametrize(
    "program", [program for program, _ in EFFECTS if program.startswith("BEGIN")]
)
def test_gawk_agrees_that_reaching_programs_are_valid(program: str, tmp_path: Path) -> None:
    assert verdict_of_gawk(program, tmp_path) in ("refused", "accepted")


# Pieces that meet in all orders: most of the sentences are nonsense, some are traps.
OPERANDS = st.sampled_from(
    ["1", "x", "$1", '"s"', "/r/", "a[1]", "(1 > 2)", "f(1)", "x++", "length", "length()", "(x)"]
    + ["/[/]/", '/"/', "$NF", "-1", "!x", "ARGV[1]", '"a|b"', '"/*"', "/]/", "/[]/]/", "/[[]/"]
)
OPERATORS = st.sampled_from(
    [" ", "/", " / ", "+", " > ", " < ", ", ", " ? 1 : ", " in a ", " ~ ", " && ", " || ", " == "]
    + ["\\\n", ",\n", " &&\n", "|", " | getline ", " | ", " >> ", " |& getline "]
)
EXPRESSIONS = st.recursive(
    OPERANDS,
    lambda inner: st.one_of(
        st.builds("{}{}{}".format, inner, OPERATORS, inner),
        st.builds("({})".format, inner),
        st.builds("x = {}".format, inner),
        st.builds("getline y < {}".format, inner),
    ),
    max_leaves=4,
)
STATEMENTS = st.one_of(
    st.builds("print {}".format, EXPRESSIONS),
    st.builds("print {} > {}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("printf({})".format, EXPRESSIONS),
    st.builds("if ({}) {}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("x = {}".format, EXPRESSIONS),
    st.builds("ARGV[1] = {}".format, EXPRESSIONS),
    EXPRESSIONS,
    st.sampled_from(
        ["getline", "getline x", 'system("")', '# "', "print", "while (0) 1", "x /= 2"]
    ),
)
PROGRAMS = st.builds(
    lambda statements, glue: "function f(x) { return x } BEGIN { " + glue.join(statements) + "\n}",
    st.lists(STATEMENTS, min_size=1, max_size=4),
    st.sampled_from(["; ", "\n", " ;\n"]),
)
SCRAPS = st.lists(
    st.sampled_from(
        ["/", '"', "[", "]", "(", ")", "\\", "\n", ";", "#", " ", "x", "1", "$", ">", "|", "<", "="]
        + [
            "print ",
            "getline ",
            "length ",
            "if (1) ",
            'system("")',
            "++",
            "@",
            "in ",
            ",",
            "^",
            ":",
        ]
    ),
    max_size=14,
).map(lambda pieces: "BEGIN { " + "".join(pieces) + "\n}")


@needs_gawk
@settings(max_examples=600)
@given(program=st.one_of(PROGRAMS, SCRAPS))
@pytest.mark.slow("starts gawk for each of many programs")
def test_whatever_the_sandbox_of_gawk_refuses_is_reported(
    program: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if verdict_of_gawk(program, tmp_path_factory.getbasetemp()) == "refused":
        assert awk_effects(program)


@given(program=st.text())
def test_any_text_is_answered(program: str) -> None:
    awk_effects(program)


@pytest.mark.parametrize(
    "seed",
    ['"', "/", "[", "(", ")", "/[", "getline ", "ARGV[", "print ", "print (", "|", "\\", "a/", "@"]
    + ["x ", "1", "system(", '"\\"', "#", "\n", "'", "/[[:a:]", "if(", ">", "\0", "_::"],
)
def test_64_kib_of_anything_is_answered(seed: str) -> None:
    awk_effects(seed * (65536 // len(seed)))
