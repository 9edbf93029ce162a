"""HTTP that goes only where the registry lets it: a name is resolved once, and what was checked is connected to.

There is no second look-up between the check and the connection, no proxy from the environment, and no redirect is
followed here. TLS still asks for a certificate of the host's name. Where a body is read whole by others, it is bounded.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping

import httpx2

from catenary_tool_dispatch.core.addresses import may_connect

CONNECT_S = 10.0


class RefusedError(httpx2.ConnectError):
    """The host leads to no address that may be connected to."""


class TooLongError(httpx2.StreamError):
    """A body has more bytes than are kept."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """See the module.

    Attributes:
        private_host: the one host that may lead to a private address.
        most: bytes of a body that is no stream of events; None where the caller bounds what it reads.
    """

    def __init__(self, private_host: str = "", most: int | None = None) -> None:
        self._private_host = private_host
        self._most = most
        self._inner = httpx2.AsyncHTTPTransport(
            trust_env=True,  # which authorities to trust, and nothing else
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=16),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Connect to one of the allowed addresses, trying the next where nobody listens."""
        response = await self._answer(request)
        if self._most is None:
            return response
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("a compressed answer, which was not asked for", request=request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Bounded(response.stream, self._most)
        return response

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        *others, last = await self._resolve(request)
        for address in others:
            try:
                return await self._inner.handle_async_request(_to(address, request))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._inner.handle_async_request(_to(last, request))

    async def _resolve(self, request: httpx2.Request) -> list[str]:
        url = request.url
        try:
            found = await asyncio.get_running_loop().getaddrinfo(_ascii(url), url.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx2.ConnectError(f"{url.host} cannot be resolved", request=request) from error
        addresses = dict.fromkeys(str(row[4][0]) for row in found)
        allowed = [one for one in addresses if may_connect(url.host, one, self._private_host)]
        if not allowed:
            raise RefusedError(f"{url.host} leads to an address that is not public", request=request)
        return allowed

    async def aclose(self) -> None:
        """Close what is kept open."""
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: object, most: int) -> None:
        if not isinstance(stream, httpx2.AsyncByteStream):
            raise TypeError("an answer of a transport that is not asynchronous")
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            if (size := size + len(chunk)) > self._most:
                raise TooLongError(f"the answer has more than {self._most} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _ascii(url: httpx2.URL) -> str:
    return url.raw_host.decode("ascii")


def _to(address: str, request: httpx2.Request) -> httpx2.Request:
    """The same request to an address; the one that was made still says the name, for redirects within it."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": _ascii(request.url)},
    )


def client_for(headers: Mapping[str, str], private_host: str, most: int | None = None) -> httpx2.AsyncClient:
    """A guarded client. `headers` names the environment variable that holds each header's value; `most` bounds a body.

    The caller bounds the time of a request; only connecting has a bound of its own.
    """
    return httpx2.AsyncClient(
        headers={
            **({"accept-encoding": "identity"} if most else {}),
            **{name: os.environ[variable] for name, variable in headers.items()},
        },
        transport=GuardedTransport(private_host, most),
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        follow_redirects=False,
        trust_env=False,
    )
