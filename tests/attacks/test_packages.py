"""`kakoi install` in a project, and from an index, that want something else to be installed."""

import asyncio
import json
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kakoi.backends.host.adapter import HostAdapter
from kakoi.gate import Gate
from kakoi.packages.installer import ManagerResult
from kakoi.packages.targets import SandboxTarget
from kakoi.policy.profiles import load_policy
from tests.attacks.indexes import Handler, Index, a_source, a_wheel, an_index, answer_with
from tests.cli.calling import Home

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
    options += ["--env", f"TMPDIR={temporary(home)}"]
    options += ["--env", f"npm_config_registry={index.url}/", "--env", "npm_config_fetch_retries=0"]
    return home("install", *options, kind, package)


def own_program(home: Home, path: str) -> Path:
    """A program of the project, and the file that it leaves where it is run."""
    marker = home.root / f"ran-{path.replace('/', '-')}"
    home.write(home.project / path, OWN_PROGRAM.format(marker=marker)).chmod(0o755)
    return marker


def temporary(home: Home) -> Path:
    """Where everything is put that is not to stay."""
    (home.root / "tmp").mkdir(exist_ok=True)
    return home.root / "tmp"


@pytest.mark.slow("virtual environments are made")
def test_nothing_of_a_projects_own_environment_is_run_to_install(home: Home, index: Index) -> None:
    index.add_files("shared-thing", a_wheel("shared-thing", requires=["brought-along"]))
    index.add_files("brought-along", a_wheel("brought-along"))
    subprocess.run(
        ["python3", "-m", "venv", "--without-pip", ".venv"], cwd=home.project, check=True
    )
    (site,) = (home.project / ".venv" / "lib").glob("python*/site-packages")
    trap = home.root / "trap"
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
    assert output == "installed shared-thing, with brought-along 1.0\n"
    assert (site / "shared_thing.py").read_text() == "word = 'genuine'\n"
    # Its program is one of that environment.
    first, *_ = (home.project / ".venv" / "bin" / "shared-thing").read_text().splitlines()
    assert first == f"#!{home.project}/.venv/bin/python"
    assert os.listdir(temporary(home)) == []


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
    wants = {"name": "p", "dependencies": {"evil": "*"}, "overrides": {"dep": "npm:evil@1"}}
    text = json.dumps({**wants, "workspaces": ["w"], "scripts": script})
    home.write(home.project / "package.json", text)
    home.write(home.project / "w" / "package.json", '{"name": "w", "version": "1.0.0"}')
    with an_index() as theirs:
        # A command could write to the home; a folder above could take ours for its workspace.
        home.write(home.root / "package.json", '{"workspaces": ["tmp/*/*/in"]}')
        for folder in (home.project, home.root):
            home.write(folder / ".npmrc", f"registry={theirs.url}/\nignore-scripts=false\n")
        status, output, said = install(home, index, "npm")
    assert status == 0, said
    assert not marker.exists()
    assert theirs.asked == []
    assert "/evil" not in index.asked
    assert output == "installed shared-thing, with dep 1.0.0\n"
    modules = home.project / "node_modules"
    assert {each.name for each in modules.iterdir()} == {".bin", ".kakoi", "shared-thing"}
    done = subprocess.run(
        [modules / ".bin" / "shared-cli"], capture_output=True, text=True, cwd="/"
    )
    assert done.stdout == "genuine\n", done.stderr
    assert (home.project / "package.json").read_text() == text
    assert os.listdir(temporary(home)) == []


# --- A hostile index ---------------------------------------------------------------------------


@pytest.fixture
def ready(home: Home) -> Home:
    """With an environment that is there already."""
    argv = ["python3", "-m", "venv", "--without-pip", ".venv"]
    subprocess.run(argv, cwd=home.project, check=True, timeout=60)
    return home


def redirect(handler: Handler) -> None:
    answer_with(handler, b"", 302, Location=handler.path)


def drip(handler: Handler) -> None:
    """A little at a time, for as long as somebody listens."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.02)


def bomb(handler: Handler) -> None:
    """A page that is small on its way, and 16 GiB once it is unpacked."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    for _ in range(16 * 1024):
        handler.wfile.write(packer.compress(bytes(1024 * 1024)))


def by_source(index: Index, marker: str) -> None:
    index.add_files("shared-thing", a_source("shared-thing", marker))


def by_a_source_elsewhere(index: Index, marker: str) -> None:
    index.add_files("evil", a_source("evil", marker))
    needs = [f"evil @ {index.url}/files/evil-1.0.tar.gz"]
    index.add_files("shared-thing", a_wheel("shared-thing", requires=needs))


def by_a_repository(index: Index, marker: str) -> None:
    needs = [f"evil @ git+{index.url}/evil"]
    index.add_files("shared-thing", a_wheel("shared-thing", requires=needs))


def by_another_name(index: Index, marker: str) -> None:
    index.add_files("shared-thing", a_wheel("shared-thing", said="evil"))


def by_control_characters(index: Index, marker: str) -> None:
    needs = ["evil\x1b]0;title\x07", "other\x1b[2J>=1"]
    index.add_files("shared-thing", a_wheel("shared-thing", requires=needs))


def by_a_circle(index: Index, marker: str) -> None:
    index.answers["/simple/shared-thing"] = redirect


def by_going_out(index: Index, marker: str) -> None:
    """A wheel with a file outside of the environment."""
    files = {f"../../../../../../../../../../..{marker}": "x"}
    index.add_files("shared-thing", a_wheel("shared-thing", files=files))


PIP_TRICKS: dict[Callable[[Index, str], None], str] = {
    by_source: "no matching distribution",
    by_a_source_elsewhere: "only wheels are installed",
    by_a_repository: "only wheels are installed",
    by_another_name: "another package",
    by_control_characters: "",
    by_a_circle: "redirect",
    by_going_out: "outside",
}


@pytest.mark.slow("pip runs for each trick")
def test_no_answer_of_a_python_index_runs_code_or_passes_for_a_success(
    ready: Home, index: Index
) -> None:
    for trick, why in PIP_TRICKS.items():
        marker = ready.root / "ran"
        index.answers.clear()
        trick(index, str(marker))
        status, output, said = install(ready, index, "pip")
        assert (status, output) == (2, ""), trick
        assert why in said.lower().replace("\n", " "), (trick, said)
        assert not marker.exists(), trick
        assert "\x1b" not in said
        assert "\x07" not in said
    assert os.listdir(temporary(ready)) == []


@pytest.mark.slow("npm runs for each trick")
@pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm")
def test_no_answer_of_an_npm_registry_runs_code_or_passes_for_a_success(
    home: Home, index: Index
) -> None:
    for version in (f"git+{index.url}/evil.git", "npm:no-such-thing@1"):
        index.answers.clear()
        index.add_node("shared-thing", dependencies={"evil": version})
        status, output, said = install(home, index, "npm")
        assert (status, output) == (2, ""), version
    index.answers["/shared-thing"] = redirect
    assert install(home, index, "npm")[0] == 2
    odd = {"name": "\x1b[2J", "dist-tags": {"latest": "\x1b[2J"}, "versions": {"\x1b[2J": {}}}
    index.answers["/shared-thing"] = json.dumps(odd).encode()
    status, output, said = install(home, index, "npm")
    assert (status, output, "\x1b" in said) == (2, "", False)
    assert not (home.project / "node_modules").exists()
    assert os.listdir(temporary(home)) == []


@pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm")
def test_what_an_alias_installs_is_reported_by_its_own_name(home: Home, index: Index) -> None:
    index.add_node("@scope/thing", dependencies={"harmless": "npm:evil@1"}, bin="index.js")
    index.add_node("evil")
    status, output, said = install(home, index, "npm", "@scope/thing")
    assert (status, output) == (0, "installed @scope/thing, with evil 1.0.0\n"), said
    assert (home.project / "node_modules" / "@scope" / "thing" / "package.json").is_file()
    assert (home.project / "node_modules" / ".bin" / "thing").resolve().is_file()


@pytest.mark.parametrize("link", ["node_modules", "node_modules/.kakoi", "node_modules/.bin"])
@pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm")
def test_npm_writes_through_no_link_of_a_project(home: Home, index: Index, link: str) -> None:
    (home.root / "elsewhere").mkdir()
    path = home.project / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(home.root / "elsewhere")
    status, _, said = install(home, index, "npm")
    assert (status, "is a link" in said, index.asked) == (2, True, [])
    assert os.listdir(home.root / "elsewhere") == []


@pytest.mark.parametrize("what", ["a link", "no environment", "another Python", "a link inside"])
def test_pip_takes_nothing_else_for_an_environment(ready: Home, index: Index, what: str) -> None:
    venv, elsewhere = ready.project / ".venv", ready.root / "elsewhere"
    marker = own_program(ready, ".venv/bin/other")
    if what == "a link":
        venv.rename(elsewhere)
        venv.symlink_to(elsewhere)
    elif what == "no environment":
        (venv / "pyvenv.cfg").unlink()
    elif what == "another Python":
        (venv / "bin" / "python").unlink()
        (venv / "bin" / "python").symlink_to("other")
    else:
        (site,) = venv.glob("lib/*/site-packages")
        site.rename(elsewhere)
        site.symlink_to(elsewhere)
    status, _, said = install(ready, index, "pip")
    assert (status, "remove " in said, index.asked) == (2, True, [])
    assert not marker.exists()


def redirect_to(other: Index) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        answer_with(handler, b"", 302, Location=f"{other.url}{handler.path}")

    return answer


def ask_for_password(handler: Handler) -> None:
    challenge = {"WWW-Authenticate": 'Basic realm="x"'}
    answer_with(handler, b"", 401, **challenge)


def leading_away(index: Index, other: Index, way: str) -> None:
    """An index that leads to another server, which asks for a password."""
    wheel = a_wheel("shared-thing")
    (file,) = wheel
    index.add_files("shared-thing", wheel)
    if way == "page":
        index.answers["/simple/shared-thing"] = redirect_to(other)
    elif way == "file":
        index.answers[f"/files/{file}"] = redirect_to(other)
    else:
        page = f'<a href="{other.url}/files/{file}">{file}</a>'
        index.answers["/simple/shared-thing"] = page.encode()
    other.answers = dict.fromkeys(("/simple/shared-thing", f"/files/{file}"), ask_for_password)


@pytest.mark.parametrize(("way", "kept_in"), [("page", "url"), ("file", "netrc"), ("link", "url")])
def test_no_password_of_a_python_index_goes_where_it_leads_to(
    ready: Home, index: Index, way: str, kept_in: str
) -> None:
    address = index.url.replace("//", "//user:5ecret-word@") if kept_in == "url" else index.url
    settings = index.pip_settings.replace(index.url, address)
    login = "machine 127.0.0.1 login user password 5ecret-word\n" if kept_in == "netrc" else ""
    env = {
        "PIP_CONFIG_FILE": str(ready.write(ready.root / "pip.conf", settings)),
        "NETRC": str(ready.write(ready.root / "netrc", login)),
        "TMPDIR": str(temporary(ready)),
    }
    options = [word for pair in env.items() for word in ("--env", "=".join(pair))]
    options += ["--allowlist", str(ready.root / "lists")]
    with an_index("127.0.0.2") as other:
        leading_away(index, other, way)
        status, output, said = ready("install", *options, "pip", "shared-thing")
    assert (status, output) == (2, "")
    assert index.given
    assert (len(other.asked), other.given) == (1, [])
    assert "5ecret-word" not in said + "".join(
        path.read_text() for path in (ready.root / "logs").iterdir()
    )


@pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm")
@pytest.mark.parametrize("way", ["page", "file", "link"])
def test_no_token_of_an_npm_registry_goes_where_it_leads_to(
    home: Home, index: Index, way: str
) -> None:
    settings = home.write(
        home.root / "npmrc",
        f"registry={index.url}/\n//{index.host}/:_authToken=5ecret-word\nfetch-retries=0\n",
    )
    env = {"npm_config_globalconfig": str(settings), "TMPDIR": str(temporary(home))}
    options = [word for pair in env.items() for word in ("--env", "=".join(pair))]
    options += ["--allowlist", str(home.root / "lists")]
    file = "/tarballs/shared-thing-1.0.0.tgz"
    with an_index("127.0.0.2") as other:
        index.add_node("shared-thing")
        if way == "link":
            page = index.answers["/shared-thing"]
            assert isinstance(page, bytes)
            index.answers["/shared-thing"] = page.replace(index.host.encode(), other.host.encode())
        else:
            index.answers[{"page": "/shared-thing", "file": file}[way]] = redirect_to(other)
        other.answers = dict.fromkeys(("/shared-thing", file), ask_for_password)
        status, output, said = home("install", *options, "npm", "shared-thing")
    assert (status, output) == (2, "")
    assert index.given
    assert (len(other.asked), other.given) == (1, [])
    assert "5ecret-word" not in said + "".join(
        path.read_text() for path in (home.root / "logs").iterdir()
    )


@pytest.mark.slow("waits for a time limit")
def test_an_index_that_never_ends_its_answer_is_given_up(ready: Home, index: Index) -> None:
    index.answers["/simple/shared-thing"] = drip
    settings = ready.write(ready.root / "pip.conf", index.pip_settings)

    async def run() -> ManagerResult:
        env = {"PIP_CONFIG_FILE": str(settings), "TMPDIR": str(temporary(ready))}
        env["PATH"] = os.environ["PATH"]
        sandbox = HostAdapter(str(ready.project), env=env, warn_on_start=False)
        gate = Gate(load_policy(roots=[str(ready.project)]), sandbox, cwd=str(ready.project))
        try:
            place = SandboxTarget(gate, str(ready.project), timeout_s=3)
            return await place.install("pip", "shared-thing")
        finally:
            await sandbox.cleanup()

    ran = asyncio.run(run())
    assert ran.exit_code != 0
    assert "time" in ran.stderr
    assert os.listdir(temporary(ready)) == []


@pytest.mark.extended("enlarges what an index answers: a gigabyte of memory is filled")
@pytest.mark.slow("a gigabyte of memory is filled")
def test_an_answer_that_fills_the_memory_is_given_up(ready: Home, index: Index) -> None:
    index.answers["/simple/shared-thing"] = bomb
    status, _, said = install(ready, index, "pip")
    assert (status, "MemoryError" in said) == (2, True)
