"""Descriptors in the messages of a socket. `array` would do, and loads five modules for it.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import struct

SIZE = struct.calcsize("i")


def pack(descriptors: list[int]) -> bytes:
    """Return the data of an SCM_RIGHTS message."""
    return struct.pack(f"{len(descriptors)}i", *descriptors)


def unpack(data: bytes) -> list[int]:
    """Return the descriptors of an SCM_RIGHTS message."""
    count = len(data) // SIZE
    return list(struct.unpack(f"{count}i", data[: count * SIZE]))
