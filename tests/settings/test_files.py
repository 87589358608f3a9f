"""Files of settings, as strangers write them: read with lines, or refused with the place."""

from pathlib import Path

import pytest

from kakoi._support.parsing import Item, read_items
from kakoi.errors import ConfigurationError


def read(folder: Path, data: str | bytes, name: str = "x.yaml") -> list[Item] | None:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_items(path)


def refusal(folder: Path, data: str | bytes, name: str = "x.yaml") -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(folder, data, name)
    message = str(caught.value)
    assert str(folder / name) in message
    assert len(message) < 400 + len(str(folder))
    return message.replace(str(folder / name), "FILE")


def test_every_value_has_its_keys_and_its_line(tmp_path: Path) -> None:
    text = "# a\na:\n  b: 1\n  c:\n    - x\n    - y\nd: {e: yes, f: }\n"
    assert read(tmp_path, text) == [
        Item(("a", "b"), 1, 3),
        Item(("a", "c"), ["x", "y"], 5),
        Item(("d", "e"), True, 7),
        Item(("d", "f"), None, 7),
    ]


def test_toml_is_read_by_its_suffix(tmp_path: Path) -> None:
    assert read(tmp_path, "[a]\nb = 1\n[a.c]\nd = ['x']\n", "x.toml") == [
        Item(("a", "b"), 1, 0),
        Item(("a", "c", "d"), ["x"], 0),
    ]


@pytest.mark.parametrize("data", ["", "# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(tmp_path: Path, data: str) -> None:
    assert read(tmp_path, data + "{}\n" if data == "---\n" else data) == []


def test_no_file_is_none_and_a_folder_is_an_error(tmp_path: Path) -> None:
    assert read_items(tmp_path / "gone.yaml") is None
    (tmp_path / "file").write_text("")
    assert read_items(tmp_path / "file" / "x.yaml") is None
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_items(tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a: &x [1]\nb: *x\n", "FILE:2 contains an alias (`*x`)"),
        ("a: 1\nb: 2\na: 3\n", "FILE:3: the key 'a' occurs twice"),
        ("a:\n- {b: 1, b: 2}\n", "FILE:2: the key 'b' occurs twice"),
        ("? [a]\n: 1\n", "FILE:1: the key"),
        ("- a\n- b\n", "FILE:1: expected keys and values"),
        ("just text\n", "FILE:1: expected keys and values"),
        ("a: [1\n", "FILE:2 is not valid YAML: "),
        ("a: 1\n---\nb: 2\n", "FILE:2 is not valid YAML: "),
        (
            "a: !!python/object/apply:os.system [id]\n",
            "FILE:1 is not valid YAML: could not determine",
        ),
        ("a: !unknown x\n", "FILE:1 is not valid YAML: could not determine"),
        ("a: 2020-99-99\n", "FILE is not valid YAML: month must be in"),
        ("a: 1" + ":1" * 5000, "FILE:1: the number is too long"),
        ("a: " + "9" * 5000, "FILE:1: the number is too long"),
        (b"a: \0\n", "FILE is not valid YAML: unacceptable character #x0000"),
        (b"a: \xff\n", "FILE is not UTF-8 text (byte 3)"),
        (b"\x7fELF\x02\x01\x01\x00", "FILE is not "),
        (b"x" * (256 * 1024 + 1), "FILE is too long: it has more than 262144 bytes"),
    ],
)
def test_a_hostile_yaml_file_is_refused_with_its_place(
    tmp_path: Path, data: str | bytes, said: str
) -> None:
    assert refusal(tmp_path, data).startswith(said)


@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "{a: "])
def test_a_deep_file_is_refused_before_all_of_it_is_read(tmp_path: Path, opening: str) -> None:
    text = "a:\n " + opening * (200_000 // len(opening))
    assert refusal(tmp_path, text) == "FILE:2 is nested too deeply"
    nested = "".join("  " * depth + "a:\n" for depth in range(40))
    assert refusal(tmp_path, nested).endswith("is nested too deeply")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a = 1\na = 2\n", "FILE is not valid TOML: Cannot overwrite a value"),
        ("a = \n", "FILE is not valid TOML: Invalid value"),
        ("a = " + "[" * 100_000, "FILE is not valid TOML: "),
        ("[" + ".".join("a" * 20) + "]\nb = 1\n", "FILE is nested too deeply"),
        (".".join("a" * 120_000) + " = 1\n", "FILE is nested too deeply"),
        ("b = {'a'" + ' . "a"' * 40_000 + " = 1}\n", "FILE is nested too deeply"),
        ('"\\""' + ".a" * 120_000 + " = 1\n", "FILE is nested too deeply"),
        ("a = " + "9" * 5000, "FILE is not valid TOML: "),
        (b"a = '\0'\n", "FILE is not valid TOML: "),
        (b"\xff", "FILE is not UTF-8 text (byte 0)"),
    ],
)
def test_a_hostile_toml_file_is_refused(tmp_path: Path, data: str | bytes, said: str) -> None:
    assert refusal(tmp_path, data, "x.toml").startswith(said)
