"""Run code that you do not trust: no network, little memory, few processes, five seconds.

The policy "open" refuses nothing: here, the sandbox and its limits are all that confines the code.
"""

from kakoi.sync import Sandbox

PROGRAMS = {
    "harmless": "print(sum(range(10)))",
    "endless": "while True: pass",
    "greedy": "x = bytearray(10**9)",
    "chatty": "while True: print('spam' * 1000)",
    "curious": "print(open('/root/.ssh/id_rsa').read())",
    "phones home": "import socket; socket.create_connection(('192.0.2.1', 80))",
    "daemon": "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(9999)",
}


def main() -> None:
    for name, program in PROGRAMS.items():
        with Sandbox(policy="open", memory="256MiB", processes=32, timeout=5) as box:
            box.files.write("program.py", program)
            result = box.run(["python3", "program.py"], max_output="4KiB")
        lines = (result.stdout or result.stderr).strip().splitlines() or [""]
        print(f"{name}: {result.reason}, exit code {result.exit_code}: {lines[-1][:60]}")
        if result.leftovers_ended:
            print(f"  ended {result.leftovers_ended} process that it left behind")


if __name__ == "__main__":
    main()
