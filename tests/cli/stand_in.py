"""`kakoi` for a shell: asks the fork server to start it with our streams, and exits like it.

forked.py writes this source as a program next to the server's socket.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

wanted = {
    "arguments": sys.argv[1:],
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    "terminal": False,
}
text = json.dumps(wanted).encode()
report, theirs = socket.socketpair()
with theirs, socket.socket(socket.AF_UNIX) as line:
    line.connect(os.path.join(os.path.dirname(__file__), "door"))
    socket.send_fds(line, [len(text).to_bytes(4, "big")], [0, 1, 2, theirs.fileno()])
    line.sendall(text)
pid = int.from_bytes(report.recv(4, socket.MSG_WAITALL), "big")
for number in FORWARDED:
    signal.signal(number, lambda number, _frame: os.kill(pid, number))
status = int.from_bytes(report.recv(4, socket.MSG_WAITALL), "big")
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
