"""A fake `container-use` with its tools, arguments and answers, and a real shell behind them.

        install(DIRECTORY)      puts it there under that name
    container-use stdio     the MCP server; container-use delete ID

An environment is a new empty directory below ENVIRONMENTS, without a copy of the project. Commands
run there with `sh -c`, on this machine. Calls are written to the file CALLS as JSON lines. MODE
makes the server misbehave.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

REQUIRED = {
    "environment_create": {"environment_source", "title"},
    "environment_config": {"environment_source", "environment_id", "config"},
    "environment_run_cmd": {"environment_source", "environment_id"},
}
KNOWN = {
    "environment_create": {"explanation", "from_git_ref"},
    "environment_config": {"explanation"},
    "environment_run_cmd": {
        *("explanation", "command", "shell", "background", "use_entrypoint", "ports")
    },
}
CRITICAL = "\n\nCRITICAL: the repository has uncommitted changes that are NOT included"


def install(folder: Path, python: str = sys.executable) -> Path:
    """Install the program in `folder`, which must come first on PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / "container-use"
    source = Path(__file__).read_text(encoding="utf-8")
    program.write_text(f"#!{python} -IS\n{source}", encoding="utf-8")
    program.chmod(0o755)
    return program


class ToolError(Exception):
    """An answer with `isError`."""


class Server:
    """One session over stdin and stdout."""

    def __init__(self, mode: str, environments: Path, calls: Path) -> None:
        self._mode = mode
        self._environments = environments
        self._calls = calls
        self._lock = threading.Lock()

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            self._note(message)
            if "id" in message and "method" in message:
                threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        self._note({"goodbye": os.getpid()})
        if self._mode == "lingers":
            time.sleep(600)

    def _note(self, message: object) -> None:
        with self._calls.open("a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")

    def say(self, message: object) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def _answer(self, message: dict[str, Any]) -> None:
        number, method, params = message["id"], message["method"], message.get("params", {})
        misbehaviour = getattr(self, f"_{self._mode}_{method.replace('/', '_')}", None)
        if misbehaviour is not None and misbehaviour(number, params):
            return
        try:
            result = self._result(method, params)
        except KeyError:
            error = {"code": -32601, "message": f"Method {method} not found"}
            self.say({"jsonrpc": "2.0", "id": number, "error": error})
        else:
            self.say({"jsonrpc": "2.0", "id": number, "result": result})

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            info = {"name": "Dagger", "version": "1.0.0"}
            revision = "2025-03-26"
            return {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": info}
        if method == "tools/list":
            return {"tools": [{"name": name, "inputSchema": {}} for name in REQUIRED]}
        if method != "tools/call":
            raise KeyError(method)
        try:
            text, is_error = self._call(params["name"], params["arguments"]), False
        except ToolError as error:
            text, is_error = str(error), True
        content = [{"type": "text", "text": text}]
        return {"content": content, "isError": True} if is_error else {"content": content}

    # --- The tools ---------------------------------------------------------------------------

    def _call(self, name: str, given: dict[str, Any]) -> str:
        if missing := REQUIRED[name] - given.keys():
            raise ToolError(f'required argument "{sorted(missing)[0]}" not found')
        if unknown := given.keys() - REQUIRED[name] - KNOWN[name]:
            raise ToolError(f"no such argument: {sorted(unknown)}")
        if not os.path.isabs(given["environment_source"]):
            raise ToolError("unable to open repository: not an absolute path")
        if name == "environment_create":
            return self._create(given)
        folder = self._environments / given["environment_id"]
        if not folder.is_dir():
            raise ToolError(f"unable to get environment: {given['environment_id']} not found")
        return (
            self._configure(folder, given) if name == "environment_config" else _run(folder, given)
        )

    def _create(self, given: dict[str, Any]) -> str:
        name = f"clever-{len(list(self._environments.iterdir()))}-dolphin"
        (self._environments / name).mkdir()
        found = {"id": name, "title": given["title"], "config": {"workdir": "/workdir"}}
        return json.dumps(found) + (CRITICAL if self._mode == "dirty" else "")

    def _configure(self, folder: Path, given: dict[str, Any]) -> str:
        image = given["config"]["base_image"]
        if image == "no/such:image":
            raise ToolError("unable to update the environment: no such image")
        return f'SUCCESS: Configuration successfully applied.\n\n{{"id": "{folder.name}"}}\n'

    # --- Misbehaviour: returns true if the request needs no other answer ---------------------

    def _silent_initialize(self, number: int, params: object) -> bool:
        return True

    def _garbage_initialize(self, number: int, params: object) -> bool:
        with self._lock:
            sys.stdout.write("Welcome to container-use!\n")
            sys.stdout.flush()
        return True

    def _deep_initialize(self, number: int, params: object) -> bool:
        with self._lock:
            sys.stdout.write("[" * 200_000 + "\n")
            sys.stdout.flush()
        return True

    def _huge_initialize(self, number: int, params: object) -> bool:
        with self._lock:
            for _ in range(40):
                sys.stdout.write("x" * 1024 * 1024)
            sys.stdout.flush()
        return True

    def _docker_initialize(self, number: int, params: object) -> bool:
        sys.stderr.write("Error: Docker daemon is not running\n")
        sys.stderr.flush()
        os._exit(1)

    def _refusing_initialize(self, number: int, params: object) -> bool:
        error = {"code": -32602, "message": "unsupported protocol version"}
        self.say({"jsonrpc": "2.0", "id": number, "error": error})
        return True

    def _chatty_initialize(self, number: int, params: object) -> bool:
        """Send unsolicited answers, requests to the client, notifications and batches."""
        strangers: list[object] = [
            {"jsonrpc": "2.0", "id": 10**6, "result": {}},
            {"jsonrpc": "2.0", "id": [1], "result": {}},
            {"jsonrpc": "2.0", "id": "1", "result": {}},
            {"jsonrpc": "2.0", "id": 77, "method": "ping"},
            {"jsonrpc": "2.0", "id": "why", "method": "sampling/createMessage", "params": {}},
            {"jsonrpc": "2.0", "method": "roots/list"},
            [],
            5,
        ]
        for each in strangers:
            self.say(each)
        return False

    def _wrongid_tools_list(self, number: int, params: object) -> bool:
        self.say({"jsonrpc": "2.0", "id": number + 1, "result": {"tools": []}})
        return True

    def _toolless_tools_list(self, number: int, params: object) -> bool:
        self.say(
            {"jsonrpc": "2.0", "id": number, "result": {"tools": [{"name": "environment_create"}]}}
        )
        return True

    def _dying_tools_call(self, number: int, params: dict[str, Any]) -> bool:
        if params["name"] == "environment_run_cmd":
            sys.stderr.write("engine lost\n")
            sys.stderr.flush()
            os._exit(3)
        return False

    def _mute_tools_call(self, number: int, params: dict[str, Any]) -> bool:
        return bool(params["name"] == "environment_run_cmd")

    def _slowmaker_tools_call(self, number: int, params: dict[str, Any]) -> bool:
        return bool(params["name"] == "environment_create")

    def _nameless_tools_call(self, number: int, params: dict[str, Any]) -> bool:
        content = [{"type": "text", "text": '{"id": "--force"}'}]
        self.say({"jsonrpc": "2.0", "id": number, "result": {"content": content}})
        return True

    def _lying_tools_call(self, number: int, params: dict[str, Any]) -> bool:
        if params["name"] != "environment_run_cmd":
            return False
        content = [{"type": "text", "text": "all went well"}]
        self.say({"jsonrpc": "2.0", "id": number, "result": {"content": content}})
        return True


def _run(folder: Path, given: dict[str, Any]) -> str:
    argv = [given.get("shell", "sh"), "-c", given["command"]]
    tmp = folder / "tmp"
    tmp.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(tmp)}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, stdin=subprocess.DEVNULL)
    stdout = done.stdout.decode("utf-8", "replace")
    stderr = done.stderr.decode("utf-8", "replace")
    said = stdout + (("\n" if stdout else "") + f"stderr: {stderr}" if stderr else "")
    return (
        f"{said}\n\nAny changes to the container workdir (/workdir) have been committed and pushed "
        "to container-use/ remote"
    )


def main() -> None:
    settings = dict(
        line.partition("=")[::2]
        for line in Path(sys.argv[0]).with_name("settings").read_text().splitlines()
    )
    environments, calls = Path(settings["ENVIRONMENTS"]), Path(settings["CALLS"])
    if sys.argv[1] == "stdio":
        Server(settings["MODE"], environments, calls).serve()
    elif sys.argv[1] == "delete":
        with calls.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"delete": sys.argv[2:], "cwd": os.getcwd()}) + "\n")
        if settings["MODE"] == "undeletable":
            sys.exit("Error: failed to delete environment")
        if settings["MODE"] == "slowdelete":
            time.sleep(60)
        shutil.rmtree(environments / sys.argv[2])


if __name__ == "__main__":
    main()
