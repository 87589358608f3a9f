"""A network namespace with a real DNS server, in which one program runs.

    python -m tests.network.name_machine PROGRAM ARGUMENT…

Prints as JSON what the program printed and which names the server was asked for.
"""

import ipaddress
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.network.rebinding_world import AAAA, A, name_in

PUBLIC, PUBLIC_6, PRIVATE = "93.184.216.34", "2606:2800:21f:cb07::1", "10.9.8.7"
TTL_S = 4321
RECORDS = {
    ("good.example", A): (PUBLIC,),
    ("good.example", AAAA): (PUBLIC_6,),
    ("private.example", A): (PRIVATE,),
    ("mixed.example", A): (PRIVATE, PUBLIC),
    # These exist, but no list of the tests has them.
    ("other.example", A): (PUBLIC,),
    ("secret.good.example", A): (PUBLIC,),
    ("data.wild.example", A): (PUBLIC,),
}


@dataclass
class Authority:
    """Answers queries for A and AAAA records from a table, and remembers the names."""

    records: Mapping[tuple[str, int], Sequence[str]]
    asked: set[str] = field(default_factory=set)

    def serve(self, port: socket.socket) -> None:
        while True:
            query, client = port.recvfrom(4096)
            port.sendto(self.answer(query), client)

    def answer(self, query: bytes) -> bytes:
        name, kind, end = name_in(query)
        self.asked.add(name)
        packed = [ipaddress.ip_address(each).packed for each in self.records.get((name, kind), ())]
        exists = any(known == name for known, _ in self.records)
        head = struct.pack("!HHHHH", 0x8580 | (0 if exists else 3), 1, len(packed), 0, 0)
        body = [struct.pack("!HHHIH", 0xC00C, kind, 1, TTL_S, len(each)) + each for each in packed]
        return b"".join((query[:2], head, query[12:end], *body))


def main() -> None:
    authority = Authority(RECORDS)
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind(("127.0.0.1", 53))
    threading.Thread(target=authority.serve, args=(port,), daemon=True).start()
    done = subprocess.run(sys.argv[1:], capture_output=True, text=True, timeout=120, check=False)
    told = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    print(json.dumps({**told, "asked": sorted(authority.asked)}))


if __name__ == "__main__":
    main()
