"""Nothing that `kakoi` exports reaches a process around the gate."""

import json
import subprocess
import sys
from pathlib import Path

import kakoi
from tests.backends.boxes import require_bubblewrap

# Objects that decide, describe or fail; and `sandbox`, which goes through the gate.
MAY_BE_EXPORTED = (
    "errors",
    "results",
    "policy",
    "sandbox",
    "channel.api",
    "overlay.changes",
    "builtin.agent",  # Its functions open a `Sandbox`.
)


def test_what_is_exported_comes_from_packages_that_start_nothing() -> None:
    homes = {name: getattr(getattr(kakoi, name), "__module__", "kakoi") for name in kakoi.__all__}
    others = {
        name: home
        for name, home in homes.items()
        if not home.removeprefix("kakoi.").startswith(MAY_BE_EXPORTED)
        and name not in ("__version__", "LimitReport")  # Values.
    }
    assert others == {}


_RECORDING = """
import asyncio, json, sys
from kakoi import SecurityError, Sandbox
started = []
def hook(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"):
        started.append([str(each) for each in args[1]] if event != "os.system" else [str(args)])
    elif event in ("os.fork", "os.forkpty"):
        started.append([event])
async def main():
    async with Sandbox("bubblewrap", audit=sys.argv[1]) as box:
        sys.addaudithook(hook)
        await box.run("echo marker-run")
        await box.run(["echo", "marker-argv"])
        async for chunk in box.stream("echo marker-stream"): pass
        await (await box.start("echo marker-job")).wait()
        async with box.session() as session:
            await session.run("echo marker-session")
        await box.files.write("marker-file", "x")
        await box.files.read("marker-file")
        async for part in box.files.stream("marker-file"): pass
        await box.files.stat("marker-file")
        await box.files.move("marker-file", "marker-moved")
        await box.files.make_dir("marker-made")
        await box.files.list("marker-made")
        async with box.files.watch("marker-made"): pass
        await box.files.upload(sys.argv[2], "marker-up")
        await box.files.download("marker-up", sys.argv[1] + "-down")
        await box.files.remove("marker-moved")
        try: await box.run("echo marker-refused; rm -rf /")
        except SecurityError: pass
asyncio.run(main())
print(json.dumps(started))
"""


# One record for each call above, in its order.
_ON_THE_ROAD = (
    """
echo run, echo argv, echo stream, echo job, echo session, write file, read file, read file,
list file, move moved, write made, list made, list made, write up, read up, remove moved
""".replace("\n", " ")
    .strip()
    .split(", ")
)


def test_commands_start_inside_only_and_each_is_recorded(tmp_path: Path) -> None:
    """Recorded by Python itself: every process that this side starts while commands run."""
    require_bubblewrap()
    audit = tmp_path / "audit.jsonl"
    argv = [sys.executable, "-c", _RECORDING, str(audit), __file__]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    started = json.loads(done.stdout)
    assert [each for each in started if "marker" in " ".join(each)] == []
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    begun = [each["command"].split() for each in records if each["event"] == "started"]
    assert [f"{words[0]} {words[-1].rpartition('marker-')[2]}" for words in begun] == _ON_THE_ROAD
    refused = [each["command"] for each in records if each["event"] == "refused"]
    assert refused == ["echo marker-refused; rm -rf /"]
