"""A project's own files, where only listed packages may be installed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.packages.allowlist import AllowlistConfig, parse
from kakoi.packages.manifests import Objection, check_manifest
from tests.packages.names import HOSTILE, LISTS

CONFIG = AllowlistConfig(pip=parse("pip", LISTS["pip"]), npm=parse("npm", LISTS["npm"]))


def objections(name: str, text: str) -> list[str]:
    return [each.entry for each in check_manifest(name, text, CONFIG)]


@pytest.mark.requirement("X-34")
def test_a_file_of_listed_packages_may_be_installed() -> None:
    text = """\
# what we need
requests >= 2, < 3   # http
requests [socks] == 2.32 ; python_version > "3.8"
pytest==8.0 \\
    --hash=sha256:abc123 \\
    --hash=sha256:def456

flask-login==0.6.3\r
"""
    assert objections("requirements.txt", text) == []
    manifest = {"dependencies": {"typescript": "^5"}, "devDependencies": {"@types/node": "20"}}
    assert objections("package.json", json.dumps(manifest)) == []


@pytest.mark.requirement("X-34")
@pytest.mark.parametrize("line", ["evil", "-r other.txt", "-e .", "--index-url https://x", "requests @ https://x/y.whl", "git+https://x/requests", "./requests", "requests --global-option=x", "requests evil", "flask-login", "flask-login>=0", "requests\x0cevil", "requests\u2028evil", "requests==1.zip", "# note\x0cevil", "# note\u2028evil", "# note \\\nevil", "requests \\\n# x \\\nevil", "requests --config-settings=x=y", "requests; a -e evil",
        "; evil", "requests \\\n evil"])  # fmt: skip
def test_one_entry_that_is_not_listed_is_named(line: str) -> None:
    found = objections("requirements.txt", f"requests\n{line}\npytest\n")
    assert len(found) == 1


@pytest.mark.requirement("X-34")
@pytest.mark.parametrize(("name", "version"), [("evil", "1"), ("typescript", "npm:evil@1"), ("typescript", "file:../x"), ("typescript", "github:a/b"), ("@types/node", "*"), ("typescript", "1 || 2"), ("typescript", None), ("typescript", {"a": 1})])  # fmt: skip
def test_a_dependency_from_elsewhere_is_named(name: str, version: object) -> None:
    text = json.dumps({"dependencies": {"eslint": "^9", name: version}})
    assert len(objections("package.json", text)) == 1


@pytest.mark.parametrize("key", ["overrides", "resolutions", "workspaces", "bundleDependencies"])
def test_what_replaces_packages_is_named(key: str) -> None:
    text = json.dumps({"dependencies": {"eslint": "^9"}, key: {"eslint": "npm:evil"}})
    assert len(objections("package.json", text)) == 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"dependencies": [1]}', "[" * 100_000, "null"])
def test_a_file_that_cannot_be_read_is_not_installed(text: str) -> None:
    assert check_manifest("package.json", text, CONFIG) == [
        Objection("package.json", "it cannot be read")
    ]


@pytest.mark.parametrize("line", [" " * 200_000, "requests" + " " * 200_000 + "evil"])
def test_a_line_of_spaces_keeps_nobody_busy(line: str) -> None:
    assert objections("requirements.txt", line) == (["requests evil"] if line.strip() else [])


def test_a_file_that_nobody_knows_is_not_installed() -> None:
    assert objections("Gemfile", "") == ["Gemfile"]


@given(st.lists(HOSTILE))
def test_no_line_hides_behind_another(lines: list[str]) -> None:
    """What is refused alone is refused in company."""
    alone = [line for line in lines if "\\" not in line and len(line.splitlines()) == 1]
    refused = [line for line in alone if objections("requirements.txt", line)]
    together = objections("requirements.txt", "\n".join(alone))
    assert len(together) == len(refused)
