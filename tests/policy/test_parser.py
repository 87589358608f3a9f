"""Shell text taken apart: every command is found, wherever it stands, and at its place."""

import pytest

from kakoi.policy.parsing.parser import MAX_BYTES, parse, parse_with_shfmt
from kakoi.policy.parsing.script import Script, Unreadable
from kakoi.policy.parsing.tree import UnknownConstruct, script_from_tree

CONSTRUCTS = [
    "zz", "a; zz", "a && zz", "a || zz", "a | zz", "a |& zz", "a & zz", "a\nzz", "(zz)", "{ zz; }",
    "if zz; then a; fi", "if a; then zz; fi", "if a; then b; elif zz; then c; fi",
    "if a; then b; else zz; fi", "while zz; do a; done", "while a; do zz; done", "until zz; do a; done",
    "for i in a; do zz; done", "for i in $(zz); do a; done", "for ((i=0;i<$(zz);i++)); do a; done",
    "select i in a; do zz; done", "case x in a) zz;; esac", "case $(zz) in a) b;; esac",
    "case x in $(zz)) b;; esac", "f() { zz; }", "function f { zz; }", "f() (zz)", "f() for i in a; do zz; done",
    "a $(zz)", "a `zz`", 'a "$(zz)"', 'a "`zz`"', "a <(zz)", "a >(zz)", "a > >(zz)", "a < <(zz)",
    "x=$(zz)", "x=$(zz) a", "x=(a $(zz))", "x=([$(zz)]=1)", "x[$(zz)]=1", "x+=$(zz)", "a ${x:-$(zz)}",
    "a ${x:=`zz`}", "a ${x/$(zz)/b}", "a ${x/b/$(zz)}", "a ${x:$(zz)}", "a ${x:1:$(zz)}", "a ${x[$(zz)]}",
    "a ${x#$(zz)}", "a ${x%%$(zz)}", "a $(( $(zz) ))", "a $[ $(zz) ]", "(( $(zz) ))", "let x=$(zz)",
    "(( x[$(zz)] ))", "[[ $(zz) ]]", "[[ -f $(zz) ]]", "[[ a == $(zz) ]]", "[[ a =~ $(zz) ]]",
    "[[ -v x[$(zz)] ]]", "a <<E\n$(zz)\nE", "a <<E\n`zz`\nE", "a <<-E\n\t$(zz)\n\tE", 'a <<< "$(zz)"',
    "a > $(zz)", "a 2> `zz`", "coproc zz", "coproc X { zz; }", "time zz", "time -p zz", "! zz",
    "export A=$(zz)", "declare -a x=($(zz))", "local y=$(zz)", "readonly z=`zz`", "{ a; } > $(zz)",
    "a $(b $(c $(zz)))", "a $(cat <<E\n$(zz)\nE\n)", "if [[ a ]]; then :; else (b | { zz; }); fi",
    "a # c\nzz", "a \\\n; zz", "a $'x' zz-not; zz", 'a "${x:-"$(zz)"}"', "a {b,$(zz)}", "exec 3< <(zz)",
]  # fmt: skip


@pytest.mark.parametrize("text", CONSTRUCTS)
def test_a_command_is_found_in_every_construct(text: str) -> None:
    script = parse(text)
    assert isinstance(script, Script)
    found = [c for c in script.commands if c.words and c.words[0].static == "zz"]
    assert len(found) == 1
    word = found[0].words[0]
    assert text[word.start : word.end] == "zz"


def test_a_quoted_heredoc_is_only_text() -> None:
    script = parse("cat <<'E'\n$(zz) `zz`\nE\n")
    assert isinstance(script, Script)
    assert len(script.commands) == 1
    body = script.commands[0].redirects[0].body
    assert body is not None
    assert body.text == "$(zz) `zz`\n"


def test_positions_count_characters_not_bytes() -> None:
    text = "echo 'あいう' \"絵文字😀\"; zz"
    script = parse_with_shfmt(text)
    assert isinstance(script, Script)
    word = script.commands[-1].words[0]
    assert text[word.start : word.end] == "zz"


def test_what_feeds_a_command_is_known() -> None:
    script = parse("a | (b; c) | d")
    assert isinstance(script, Script)
    assert [command.feeders for command in script.commands] == [(), (0,), (0,), (0, 1, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x" * (MAX_BYTES + 1), "longer than 64 KiB"),
        ("あ" * (MAX_BYTES // 3 + 1), "longer than 64 KiB"),
        ("echo \0", "control character"),
        ("echo \x1b[31m", "control character"),
        ("ls\r\n", "control character"),
        ("echo \ud800", "invalid UTF-8"),
        ("echo \u202e", "control character"),
        ("$(" * 65 + ")" * 65, "nested more than 64"),
        ("(" * 6000, "nested more than 64"),
        ("a;" * 5000, "more than 3000 words"),
        ("a|" * 150 + "a", "more than 100 commands in one chain"),
        ("echo $((" + "1+" * 15000 + "1))", "too many substitutions or operators"),
        ("cat <<E\n" + "$(ls)\n" * 9000 + "E", "too many substitutions or operators"),
        ('echo "x', "not valid shell"),
        ("if", "not valid shell"),
        ("ls |", "not valid shell"),
        ("[[ x == ?($(zz)) ]]", "extended glob"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_the_reason(text: str, says: str) -> None:
    script = parse(text)
    assert isinstance(script, Unreadable)
    assert says in script.reason
    assert 0 <= script.start <= script.end <= max(len(text), 1)


def node(**fields: object) -> dict[str, object]:
    place = {"Offset": 0, "Line": 1, "Col": 1}
    return {"Pos": place, "End": place, **fields}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (node(Type="TestDecl"), "TestDecl"),
        (node(Type="NewThing", Args=[]), "NewThing"),
        (node(Type="CallExpr", Args=[node(Parts=[node(Type="NewPart")])]), "NewPart"),
        (node(Type="CallExpr", Args=[], Surprise=[node()]), "CallExpr.Surprise"),
    ],
)
def test_an_unknown_node_or_field_is_refused_by_name(
    command: dict[str, object], named: str
) -> None:
    with pytest.raises(UnknownConstruct, match=named):
        script_from_tree("x", node(Stmts=[node(Cmd=command)]))
