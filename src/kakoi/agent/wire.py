"""The HTTP client under the vendors' clients, and that of MCP: it believes no server.

An answer is bounded in size, is sent as it is, and comes from the address that was asked. The
vendors' own clients would read any length, unpack any archive, and follow a redirect to another
server with the key of this one in a header.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final

import httpx2

MIB: Final = 1024 * 1024
# The longest answers of models are some hundred KiB.
MAX_ANSWER_BYTES: Final = 8 * MIB


class UnfitAnswer(Exception):
    """A server has sent what no model sends. Asking again would bring the same."""


def wary_client(
    kind: type[httpx2.AsyncClient] = httpx2.AsyncClient,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> httpx2.AsyncClient:
    """A client for one server. A proxy is taken from the environment, as vendors do.

    `kind`: a vendor's own class keeps a connection alive on which nothing is said for minutes.
    """

    async def check(response: httpx2.Response) -> None:
        if response.is_redirect:
            # Shown without its query: that may hold anything.
            target = str(response.headers.get("location", "")).partition("?")[0]
            raise UnfitAnswer(f"the server sends us to another address: {target!r:.200}")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            # A small archive can hold a very big text.
            raise UnfitAnswer(f"the answer is packed ({encoding!r:.40}), and we asked it not to be")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, max_bytes)

    return kind(
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout_s,
        follow_redirects=False,
        event_hooks={"response": [check]},
    )


class _Bounded(httpx2.AsyncByteStream):
    """A stream that ends in an error when it is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int) -> None:
        self._stream = stream
        self._most_bytes = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        async for chunk in self._stream:
            seen += len(chunk)
            if seen > self._most_bytes:
                raise UnfitAnswer(f"the answer has more than {self._most_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def unfit(error: BaseException) -> UnfitAnswer | None:
    """What this module found wrong, if that is the cause of an error of a vendor's client."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None or isinstance(cause, UnfitAnswer):
            return cause
        cause = cause.__cause__
    return None
