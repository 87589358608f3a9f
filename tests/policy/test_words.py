"""What a word is for certain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.policy.parsing.parser import parse
from kakoi.policy.parsing.script import Script
from kakoi.policy.parsing.words import Word, ansi_c_text, brace_words, make_word, unquoted_parts


def first_word(text: str) -> Word:
    script = parse(text)
    assert isinstance(script, Script)
    return script.commands[0].words[0]


@pytest.mark.parametrize(
    "text", ["rm", r"r\m", "'r''m'", 'r"m"', "$'\\x72m'", "$'\\162m'", '"rm"', "r''m", "$'rm'"]
)
def test_quoting_does_not_hide_a_name(text: str) -> None:
    assert first_word(text).static == "rm"


@pytest.mark.parametrize(
    "text", ["$x", '"$x"', "$(x)", "`x`", "r*", "r?", "[r]m", "~/rm", "a$x", "${x:-rm}", "$((1))"]
)
def test_a_word_with_an_expansion_a_glob_or_a_tilde_is_not_static(text: str) -> None:
    assert first_word(text).static is None


def test_a_quoted_glob_is_an_ordinary_character() -> None:
    assert first_word("'*'").static == "*"
    assert first_word(r"\*").static == "*"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a{b,c}d", ["abd", "acd"]),
        ("{1..4}", ["1", "2", "3", "4"]),
        ("{a..e..2}", ["a", "c", "e"]),
        ("x{a,{b,c}}", ["xa", "xb", "xc"]),
        ("{}", ["{}"]),
        ("{a}", ["{a}"]),
        ("{a,b", ["{a,b"]),
        ("-{r,f}", ["-r", "-f"]),
        ("{x{a,b}}", ["{xa}", "{xb}"]),
        (r"\{a,b}", ["{a,b}"]),
    ],
)
def test_braces_expand_as_in_bash(text: str, words: list[str]) -> None:
    word = make_word(tuple(unquoted_parts(text)), 0, len(text))
    assert [each.text for each in brace_words(word)] == words


def test_a_brace_bomb_is_one_unknown_word() -> None:
    bomb = make_word(tuple(unquoted_parts("{a,b}" * 40)), 0, 1)
    assert [each.text for each in brace_words(bomb)] == [None]


@pytest.mark.parametrize(
    ("raw", "text"),
    [(r"\x41", "A"), (r"\u3042", "あ"), (r"\101", "A"), (r"\n\t\\\'", "\n\t\\'"), (r"a\0b", "a"), (r"\q", "\\q")],
)  # fmt: skip
def test_ansi_c_quoting_is_decoded_as_bash_does(raw: str, text: str) -> None:
    assert ansi_c_text(raw) == text


@given(st.text(max_size=40))
def test_decoding_never_raises(text: str) -> None:
    assert isinstance(ansi_c_text(text), str)
    assert brace_words(make_word(tuple(unquoted_parts(text)), 0, len(text))) is not None
