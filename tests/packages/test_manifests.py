"""A project's own files, where only listed packages may be installed."""

import codecs
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.req.req_file import parse_requirements

from kakoi.packages.allowlist import AllowlistConfig, InstallRequest, check, parse
from kakoi.packages.manifests import Objection, check_manifest
from tests.packages.names import HOSTILE, LISTS

CONFIG = AllowlistConfig(pip=parse("pip", LISTS["pip"]), npm=parse("npm", LISTS["npm"]))


def objections(name: str, text: str | bytes) -> list[str]:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return [each.entry for each in check_manifest(name, data, CONFIG).objections]


def read_by_pip(folder: Path, data: bytes) -> list[str]:
    """The requirements that pip itself finds in a file; anything but a plain one is named, too."""
    (folder / "requirements.txt").write_bytes(data)
    found = parse_requirements(str(folder / "requirements.txt"), session=None)  # type: ignore[arg-type]  # Only for addresses.
    return [f"-e {each.requirement}" if each.is_editable else each.requirement for each in found]


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
    assert check_manifest("package.json", text.encode(), CONFIG).objections == (
        Objection("package.json", "it cannot be read"),
    )


@pytest.mark.parametrize("text", ['{"dependencies": {"evil": "1"}, "dependencies": {}}', '{"a": [{"b": 1, "b": 2}]}', '{"__proto__": {"dependencies": {"evil": "1"}}}', '{"a": NaN}', b'\xef\xbb\xbf{}', b'{"a": "\xff"}', '{}'.encode("utf-16"), '{}'.encode("utf-32")])  # fmt: skip
def test_a_file_that_two_readers_take_for_two_things_is_not_installed(text: str | bytes) -> None:
    assert objections("package.json", text) == ["package.json"]


UNSAFE = "http://127.0.0.1:1/x.whl"
CODED = {
    "a cookie": b"# -*- coding: utf-7 -*-\n# +AAo-" + UNSAFE.encode() + b"\nrequests\n",
    "a cookie in line 2": b"requests\n# vim: set fileencoding=utf-7 :\n# +AAo-evil\n",
    "a cookie of letters": b"# coding=rot13\nerdhrfgf\n",
    "a cookie after a mark": codecs.BOM_UTF8 + b"# coding: utf-7\n# +AAo-evil\n",
    "UTF-16": f"requests\n{UNSAFE}\n".encode("utf-16"),
    "UTF-16, big end first": codecs.BOM_UTF16_BE + "evil\n".encode("utf-16-be"),
    "UTF-32": "requests\nevil\n".encode("utf-32"),
    "a variable": b"requests==${EVIL}\n",
    "another file": b"requests\n-rother.txt\n",
    "constraints": b"requests\n-c other.txt\n",
}


@pytest.mark.parametrize("data", CODED.values(), ids=CODED.keys())
def test_what_pip_would_read_in_another_way_is_not_installed(data: bytes) -> None:
    assert check_manifest("requirements.txt", data, CONFIG).objections


@pytest.mark.parametrize("cookie", ["# -*- coding: utf-8 -*-", "# coding=UTF-8", "\ufeff# x"])
def test_a_file_that_names_the_usual_encoding_is_installed(cookie: str) -> None:
    text = f"{cookie}\nrequests==2 ; python_version > '3' --hash=sha256:ab\n# ü\n\n"
    found = check_manifest("requirements.txt", text.encode(), CONFIG)
    assert found.objections == ()
    assert found.text == "requests==2 ; python_version > '3' --hash=sha256:ab\n"


_LINES = st.one_of(
    HOSTILE,
    st.sampled_from([
        "requests", "pytest==8 \\", "# coding: utf-7", "+AAo-evil", "${HOME}", "\x0c", "\x85evil",
        "requests; os_name == 'nt'", "requests --hash=sha256:ab", "# c\x1cevil", "requests ;#x",
    ]),
)  # fmt: skip


@given(st.lists(_LINES, max_size=6), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
def test_pip_finds_in_what_it_is_given_what_was_checked(lines: list[str], coding: str) -> None:
    """Pip itself is the judge: no reading of a file that passed gives it anything else."""
    data = "\n".join(lines).encode(coding, "replace")
    found = check_manifest("requirements.txt", data, CONFIG)
    if found.objections:
        assert found.text == ""
        return
    given_to_pip = found.text.encode("ascii")
    with tempfile.TemporaryDirectory() as folder:
        for requirement in read_by_pip(Path(folder), given_to_pip):
            name = requirement.partition(";")[0].strip()
            assert check(InstallRequest("pip", name), CONFIG).wanted == name


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
