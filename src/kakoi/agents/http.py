"""The HTTP client under the vendors' clients and the MCP client: it trusts no server.

A response is limited in size, is not compressed, and comes from the address that was asked. The
vendors' own clients would read any length, decompress anything, and follow a redirect to another
server with this server's key in a header.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final

import httpx2

MIB: Final = 1024 * 1024
# The longest answers of models are a few hundred KiB.
MAX_ANSWER_BYTES: Final = 8 * MIB


class BadResponse(Exception):
    """A server sent what no model sends. Retrying would give the same."""


def restricted_client(
    kind: type[httpx2.AsyncClient] = httpx2.AsyncClient,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> httpx2.AsyncClient:
    """Return a client for one server. A proxy is taken from the environment, as vendors do.

    `kind`: a vendor's own class, which keeps connections alive that are silent for minutes.
    """

    async def check(response: httpx2.Response) -> None:
        if response.is_redirect:
            # Shown without its query, which can contain anything.
            target = str(response.headers.get("location", "")).partition("?")[0]
            raise BadResponse(f"the server redirects to another address: {target!r:.200}")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            # A small compressed body can expand to a huge one.
            raise BadResponse(
                f"the response is compressed ({encoding!r:.40}), which we did not accept"
            )
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, max_bytes)

    return kind(
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout_s,
        follow_redirects=False,
        event_hooks={"response": [check]},
    )


class _Bounded(httpx2.AsyncByteStream):
    """A stream that raises an error when it is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int) -> None:
        self._stream = stream
        self._most_bytes = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        async for chunk in self._stream:
            seen += len(chunk)
            if seen > self._most_bytes:
                raise BadResponse(f"the response has more than {self._most_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def find_bad_response(error: BaseException) -> BadResponse | None:
    """Return the BadResponse that caused an error of a vendor's client, if any."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None or isinstance(cause, BadResponse):
            return cause
        cause = cause.__cause__
    return None
