"""The fast path gives the very Script of the parser of record, or gives up."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kakoi.policy.parsing.fast_path import plain_script
from kakoi.policy.parsing.parser import parse, parse_with_shfmt

CORPUS = Path(__file__).parent / "corpus"
WORDS = st.sampled_from(
    ["ls", "-la", "git", "a=b", "A=1", "X=", "--x=y", "'q q'", '"d d"', "''", '""', "a'b'c", "~/x", "*.py", "x?", "[a]",
     "[", "]", "[[", "{a,b}", "{}", "{", "}", "}x", "2", "12", "/dev/null", "if", "then", "do", "in", "time", "function",
     "export", "let", "あ", "é'é'", "%1", "@x", "a@b", "+x", "-", "--", "a,b", "x:y", "a^b", "=", "==", "a[0]=1", "{x}", "!",
     "a{", "n'a{b,c}'", "x=~/y", "X={a,b}", "'", '"', "\\", "$", "#c", "a#b"]
)  # fmt: skip
GLUE = st.sampled_from(
    [" ", "  ", "\t", " && ", "&&", " || ", " | ", "|", " ; ", ";", " > ", ">", " 2>", "2>&1 ", " >& ", " &>", " &>> ",
     ">>", " >| ", " < ", "<", " <& ", "", "& ", " |& ", ";;", "\n", " <> ", " << "]
)  # fmt: skip


@given(st.lists(st.tuples(WORDS, GLUE), min_size=1, max_size=8))
@example([("ls", " "), ("{x}", ">"), ("f", "")])
@example([("a", ";"), ("", "")])
def test_it_never_differs_from_the_parser_of_record(pieces: list[tuple[str, str]]) -> None:
    text = "".join(word + glue for word, glue in pieces)
    if plain_script(text) is not None:
        assert parse(text) == parse_with_shfmt(text)


@given(st.text(alphabet=" \tab=/'\"{},*?[]~|&;<>0123.-あ$\\!#()\n", max_size=24))
def test_it_never_differs_on_arbitrary_text(text: str) -> None:
    if plain_script(text) is not None:
        assert parse(text) == parse_with_shfmt(text)


@pytest.mark.parametrize("name", ["everyday.jsonl", "hostile.jsonl"])
def test_it_agrees_on_the_tables_and_takes_most_everyday_lines(name: str) -> None:
    lines = (CORPUS / name).read_text("utf-8").splitlines()
    commands = [json.loads(line)["command"] for line in lines]
    taken = 0
    for command in commands:
        if plain_script(command) is not None:
            taken += 1
            assert parse(command) == parse_with_shfmt(command)
    assert name != "everyday.jsonl" or taken > len(commands) / 2
