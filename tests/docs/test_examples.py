"""Every block of code in the documents is run, or says in sight of its readers why it is not."""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agents.openai_server import OpenAIServer, call
from tests.cli.conftest import has_bubblewrap, has_image, need
from tests.docs.pages import PAGES, Block, blocks, shown
from tests.docs.reader import Given, Reader, fits, steps
from tests.integrations.frameworks import python


def complaints(reader: Reader, text: str) -> list[str]:
    return [
        f"line {block.line}: {each}"
        for block in blocks(text)
        if block.is_run
        for each in reader.follow(block)
    ]


@contextmanager
def a_model() -> Iterator[Given]:
    """A script behind the protocol of OpenAI; it mends the mistake of the tutorial."""
    tests = call("execute_command", command="python3 -m unittest -q")
    # Not of the same length: Python tells a changed file by its size and the second of its time.
    mend = call("edit_file", path="adder.py", old_text="a - b", new_text="sum([a, b])")
    done = call("done", summary="add() adds now, and its test passes.")
    with OpenAIServer(tests, mend, tests, done).listening() as server:
        yield Given(
            {
                "KAKOI_MODEL": "openai:scripted",
                "KAKOI_MODEL_URL": server.url,
                "KAKOI_MODEL_API_KEY": "a-key-of-no-worth",
            }
        )


@contextmanager
def nothing() -> Iterator[Given]:
    yield Given()


@contextmanager
def an_image() -> Iterator[Given]:
    """The image of the tests, where no registry can be reached; and a name that nobody else has."""
    need("docker", is_there=has_image("kakoi-test:python"))
    made = f"kakoi-docs-{uuid.uuid4().hex}:1"
    try:
        yield Given(words={"python:3.12-slim": "kakoi-test:python", "my-team/agent:1": made})
    finally:
        subprocess.run(["docker", "rmi", made], capture_output=True, timeout=60)


@contextmanager
def an_engine() -> Iterator[Given]:
    need("docker", is_there=has_image("kakoi-test:python"))
    yield Given()


@contextmanager
def the_frameworks() -> Iterator[Given]:
    """The environment of scripts/integrations. Some frameworks warn about themselves."""
    yield Given(python=(str(python()),))


# What a page needs from outside: tests may not have it, or something stands in for it.
NEEDS = {
    "docs/tutorial.md": a_model,
    "docs/how-to/deepagents.md": the_frameworks,
    "docs/how-to/inspect-ai.md": the_frameworks,
    "docs/how-to/openai-agents.md": the_frameworks,
    "docs/how-to/own-image.md": an_image,
    "docs/how-to/pydantic-ai.md": the_frameworks,
    "docs/how-to/sandbox.md": an_image,
    "docs/how-to/task-library.md": an_image,
    "docs/troubleshooting.md": an_engine,
}


# Its code is that of the other edition: tests/test_readme.py holds them against each other.
TRANSLATED = pytest.mark.extended("repetition: the same code as in README.md")
FOREIGN = pytest.mark.extended("in an environment that only `test-all` needs")


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    if name == "README.ja.md":
        return (TRANSLATED,)
    return (FOREIGN,) if NEEDS.get(name) is the_frameworks else ()


RUN = [pytest.param(page, marks=_marks(shown(page)), id=shown(page)) for page in PAGES]


@pytest.mark.parametrize("page", RUN)
@pytest.mark.slow("follows a whole page, command by command")
def test_the_examples_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    if any(block.language in ("console", "sh", "python") for block in blocks(text)):
        need("bubblewrap", is_there=has_bubblewrap())
    with NEEDS.get(shown(page), nothing)() as given:
        wrong = complaints(Reader(tmp_path / "home", given), text)
    assert not wrong, "\n\n".join(wrong)


# --- The reader itself ------------------------------------------------------------------------


def follow(tmp_path: Path, text: str) -> list[str]:
    return complaints(Reader(tmp_path / "home"), text)


@pytest.mark.parametrize(
    "wrong",
    [
        "```console\n$ kakoi --version\nkakoi 0.0.0-no\n```",
        "```console\n$ false\n$ echo $?\n0\n```",
        "```console\n$ echo a; echo b\na\n```",
        "```console\necho without a prompt\n```",
        "```text\n$ echo hidden\n```",
        "```sh\nfalse\ntrue\n```",
        "```sh\nmake nonsense\n```",
        "```python\nraise SystemExit(1)\n```",
        "```python\nimport warnings; warnings.warn('old')\n```",
        "```yaml\nsandbox: {typ: docker}\n```",
        "```toml\na = 1\n```",
    ],
)
def test_a_wrong_example_is_noticed(tmp_path: Path, wrong: str) -> None:
    assert len(follow(tmp_path, wrong + "\n")) == 1


def test_a_reader_stays_in_one_terminal(tmp_path: Path) -> None:
    page = """\
Make a place:

```console
$ mkdir deep && cd deep && export SEEN='two words'
$ (exit 7)
$ echo $?
7
```

Put this into `note.txt`:

```
hello
```

- ```console
  $ cat note.txt; basename "$PWD"; echo "$SEEN"
  hello
  deep
  two words
  $ cat <<'END'
  > two
  > lines
  > END
  two
  lines
  ```
"""
    assert follow(tmp_path, page) == []


def test_a_block_is_left_out_for_a_reason_that_readers_see(tmp_path: Path) -> None:
    left_out = "*Not run by the tests: it needs a token.*\n\n```sh\nfalse\n```\n"
    assert follow(tmp_path, left_out) == []
    for other in ("<!-- Not run by the tests: hidden. -->", "*Not run by the tests.*"):
        (block,) = blocks(f"{other}\n\n```sh\nfalse\n```\n")
        assert block.is_run


def test_the_dots_stand_for_anything_and_nothing_else_does() -> None:
    assert fits("at 12:01 in a\nb\nc\n", ["at … in a", "…", "c"])
    assert fits("c\n", ["…", "c"])
    assert fits("a\n", ["a", "…"])
    assert not fits("a.b\n", ["a…c"])
    assert not fits("a\nb\n", ["a…"])
    assert not fits("axb\n", ["a.b"])


def test_blocks_know_their_files() -> None:
    def file(before: str) -> str:
        return Block(1, "yaml", "", before).file

    assert (
        file("Put it into `~/.config/kakoi/config.yaml`, as below:")
        == "~/.config/kakoi/config.yaml"
    )
    assert file("Of `a.txt` and `b.txt`:") == "b.txt"
    assert file("See `a.txt`.") == file("With `kakoi`:") == file("Settings:") == ""
    assert [step.command for step in steps("$ a\nx\n> y\n")] == ["a"]
