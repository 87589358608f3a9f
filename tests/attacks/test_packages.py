"""`kakoi install` in a project, and from an index, that want something else to be installed."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.indexes import Index, a_wheel, an_index
from tests.doors.calling import Home

# It leaves a file, and says that all went well.
OWN_PROGRAM = '#!/bin/sh\ntouch "{marker}"\nexit 0\n'


@pytest.fixture
def index() -> Iterator[Index]:
    with an_index() as index:
        yield index


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """On the host: what is tried is what a project brings about, not what a wall keeps."""
    (tmp_path / "project").mkdir()
    lists = tmp_path / "lists"
    for kind in ("pip", "npm"):
        Home(tmp_path).write(lists / f"{kind}.txt", "shared-thing\n@scope/thing\n")
    return Home(tmp_path, {"KAKOI_SANDBOX": "host", "INSTALL_LOG_DIR": str(tmp_path / "logs")})


def install(
    home: Home, index: Index, kind: str, package: str = "shared-thing"
) -> tuple[int, str, str]:
    """With an index that the user names, not the project."""
    settings = home.write(home.root / "pip.conf", index.pip_settings)
    options = ["--allowlist", str(home.root / "lists"), "--env", f"PIP_CONFIG_FILE={settings}"]
    options += ["--env", f"npm_config_registry={index.url}/", "--env", "npm_config_fetch_retries=0"]
    return home("install", *options, kind, package)


def own_program(home: Home, path: str) -> Path:
    """A program of the project, and the file that it leaves where it is run."""
    marker = home.root / f"ran-{path.replace('/', '-')}"
    home.write(home.project / path, OWN_PROGRAM.format(marker=marker)).chmod(0o755)
    return marker


def left_in_tmp() -> set[str]:
    return {each for each in os.listdir("/tmp") if each.startswith("kakoi-install-")}


@pytest.mark.slow("virtual environments are made")
def test_nothing_of_a_projects_own_environment_is_run_to_install(home: Home, index: Index) -> None:
    index.add_files("shared-thing", a_wheel("shared-thing", requires=["brought-along"]))
    index.add_files("brought-along", a_wheel("brought-along"))
    subprocess.run(
        ["python3", "-m", "venv", "--without-pip", ".venv"], cwd=home.project, check=True
    )
    (site,) = (home.project / ".venv" / "lib").glob("python*/site-packages")
    trap, before = home.root / "trap", left_in_tmp()
    code = f"open({str(trap)!r}, 'w')\n"
    for name in ("pip/__init__.py", "pip/__main__.py", "attr.py", "sitecustomize.py", "keyring.py"):
        home.write(site / name, code)
    home.write(site / "own.pth", f"import sys; {code}")
    home.write(home.project / "pip.py", code)
    home.write(home.project / "sitecustomize.py", code)
    # Where nothing answers.
    home.write(home.project / ".venv" / "pip.conf", "[global]\nindex-url = http://127.0.0.1:1/\n")
    # What claims to be there already is not what was asked for.
    home.write(
        site / "shared_thing-1.0.dist-info" / "METADATA", "Name: shared-thing\nVersion: 1.0\n"
    )
    home.write(site / "shared_thing.py", "word = 'planted'\n")
    home.write(site / "shared_thing-1.0.dist-info" / "RECORD", "shared_thing.py,,\n")
    markers = [
        own_program(home, path) for path in (".venv/bin/pip", ".venv/bin/python3.99", "bin/python3")
    ]
    status, output, said = install(
        Home(home.root, {**home.env, "PATH": f"{home.project}/bin:{os.environ['PATH']}"}),
        index,
        "pip",
    )
    assert status == 0, said
    assert not any(each.exists() for each in [trap, *markers])
    assert output == "installed shared-thing; with it came brought-along 1.0\n"
    assert (site / "shared_thing.py").read_text() == "word = 'genuine'\n"
    # Its program is one of that environment.
    first, *_ = (home.project / ".venv" / "bin" / "shared-thing").read_text().splitlines()
    assert first == f"#!{home.project}/.venv/bin/python"
    assert left_in_tmp() == before


@pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm")
@pytest.mark.slow("npm takes its time")
def test_npm_installs_what_was_asked_for_and_nothing_of_the_project(
    home: Home, index: Index
) -> None:
    marker = home.root / "ran"
    script = {"preinstall": f"touch {marker}", "postinstall": f"touch {marker}"}
    index.add_node(
        "shared-thing",
        {"cli.js": "#!/usr/bin/env node\nconsole.log(require('dep'))\n"},
        dependencies={"dep": "*"},
        peerDependencies={"evil": "*"},
        bin={"shared-cli": "cli.js"},
        scripts=script,
    )
    index.add_node("dep", {"index.js": "module.exports = 'genuine'\n"}, scripts=script)
    index.add_node("evil")
    before = left_in_tmp()
    wants = {"name": "p", "dependencies": {"evil": "*"}, "overrides": {"dep": "npm:evil@1"}}
    text = json.dumps({**wants, "workspaces": ["w"], "scripts": script})
    home.write(home.project / "package.json", text)
    home.write(home.project / "w" / "package.json", '{"name": "w", "version": "1.0.0"}')
    with an_index() as theirs:
        home.write(home.project / ".npmrc", f"registry={theirs.url}/\nignore-scripts=false\n")
        status, output, said = install(home, index, "npm")
    assert status == 0, said
    assert not marker.exists()
    assert theirs.asked == []
    assert "/evil" not in index.asked
    assert output == "installed shared-thing; with it came dep 1.0.0\n"
    modules = home.project / "node_modules"
    assert {each.name for each in modules.iterdir()} == {".bin", ".kakoi", "shared-thing"}
    done = subprocess.run(
        [modules / ".bin" / "shared-cli"], capture_output=True, text=True, cwd="/"
    )
    assert done.stdout == "genuine\n", done.stderr
    assert (home.project / "package.json").read_text() == text
    assert left_in_tmp() == before
