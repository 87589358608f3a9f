"""A separate network namespace with a real DNS server that changes its answers, services that must
stay unreachable, and a proxy that resolves names as in production.

Prints as JSON the answers to a client, the number of queries per name, and the services reached.
"""

import asyncio
import ipaddress
import json
import socket
import struct
import threading
from collections import Counter

from kakoi.network.domains import Domains, parse_domains
from kakoi.network.proxy import Proxy

PUBLIC, METADATA, PRIVATE, LOOPBACK = "93.184.216.34", "169.254.169.254", "10.9.8.7", "127.0.0.1"
A, CNAME, AAAA = 1, 5, 28
# Each query for a name gets the next answer, and the last one repeats.
ANSWERS: dict[tuple[str, int], list[list[str]]] = {
    ("flips.example", A): [[PUBLIC], [METADATA]],
    ("inward.example", A): [[PUBLIC], [LOOPBACK]],
    ("mixed.example", A): [[METADATA, PUBLIC, LOOPBACK, PRIVATE]],
    ("inside.example", A): [[LOOPBACK, METADATA, PRIVATE]],
    ("six.example", A): [[]],
    ("six.example", AAAA): [["::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"]],
    ("half.example", A): [[PUBLIC]],
    ("half.example", AAAA): [["::ffff:127.0.0.1"]],
    ("alias.example", A): [["inside.example"]],
}
reached: list[str] = []
asked: Counter[str] = Counter()


def name_in(question: bytes) -> tuple[str, int, int]:
    """Return the name, the record type, and the end of the question."""
    labels, at = [], 12
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode("ascii"))
        at += 1 + size
    return ".".join(labels).lower(), struct.unpack_from("!H", question, at + 1)[0], at + 5


def packed_name(name: str) -> bytes:
    return b"".join(bytes([len(each)]) + each.encode("ascii") for each in name.split(".")) + b"\0"


def records(name: str, kind: int) -> list[bytes]:
    answers = ANSWERS.get((name, kind), [[]])
    found = answers[min(asked[f"{name} {kind}"], len(answers)) - 1]
    packed = []
    for each in found:
        if each.endswith(".example"):  # An alias, resolved in the same response.
            data = packed_name(each)
            packed.append(packed_name(name) + struct.pack("!HHIH", CNAME, 1, 0, len(data)) + data)
            asked[f"{each} {kind}"] += 1
            packed += records(each, kind)
        else:
            data = ipaddress.ip_address(each).packed
            packed.append(packed_name(name) + struct.pack("!HHIH", kind, 1, 0, len(data)) + data)
    return packed


def serve_names(port: socket.socket) -> None:
    while True:
        question, client = port.recvfrom(4096)
        name, kind, end = name_in(question)
        asked[f"{name} {kind}"] += 1
        found = records(name, kind)
        head = question[:2] + struct.pack("!HHHHH", 0x8580, 1, len(found), 0, 0)
        port.sendto(head + question[12:end] + b"".join(found), client)


async def service(address: str, port: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(f"{address}:{port}")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    await asyncio.start_server(answer, address, port)


async def ask(port: int, text: str) -> str:
    """Return the first line of the proxy's response."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(text.encode("ascii"))
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)
    writer.close()
    return answer.decode("ascii").strip()


async def answers(domains: Domains, requests: list[str]) -> list[str]:
    proxy = Proxy(domains)
    listener = socket.create_server((LOOPBACK, 0))
    proxy.serve(listener)
    try:
        return [await ask(listener.getsockname()[1], each) for each in requests]
    finally:
        await proxy.close()


async def main() -> None:
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind((LOOPBACK, 53))
    threading.Thread(target=serve_names, args=(port,), daemon=True).start()
    for address in (PUBLIC, METADATA, PRIVATE, LOOPBACK, "::1"):
        await service(address, 80)
    for address in (METADATA, PRIVATE, LOOPBACK):  # Not at the public address.
        await service(address, 81)
    names = sorted({name for name, _ in ANSWERS})
    listed = parse_domains([f"{name}:*" for name in names])
    told: dict[str, object] = {}
    for kind, domains in (("listed", listed), ("open", Domains(everything=True))):
        for name in names:
            asked.clear()
            reached.clear()
            gets = [
                f"GET http://{name}:{at}/ HTTP/1.1\r\nHost: {name}:{at}\r\n\r\n"
                for at in (80, 80, 81)
            ]
            tunnel = f"CONNECT {name}:81 HTTP/1.1\r\nHost: {name}:81\r\n\r\n"
            found = await answers(domains, [*gets, tunnel])
            told[f"{kind} {name}"] = [found, asked[f"{name} {A}"], sorted(set(reached))]
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
