"""HTTP: the arguments as a POST of JSON, the answer's body as the output.

A 2xx is success; any other status is a failure whose body the model is shown. Nothing is decompressed: a small body
that grows large is refused by asking for none.
"""

import asyncio
from collections.abc import Mapping

import httpx2
from catenary_runtime import telemetry
from opentelemetry import trace

from catenary_tool_dispatch.executors.base import Invocation, Outcome, bounded, not_shown
from catenary_tool_dispatch.executors.guard import RefusedError, client_for

_FAILED_LIMIT = 4 * 1024
_TEXT = ("text/", "application/json", "application/xml", "application/x-ndjson", "application/yaml")
_TEXT_ENDINGS = ("+json", "+xml", "+yaml")


class HttpExecutor:
    """Posts each call to `url`. `Idempotency-Key` in its headers names the call."""

    def __init__(self, url: str, *, headers: Mapping[str, str], private_host: str, max_output: int) -> None:
        self._url = url
        self._max_output = max_output
        self._client = client_for(headers, private_host)

    async def run(self, invocation: Invocation, seconds: float) -> Outcome:
        """Post, and read as much of the answer as may be kept."""
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "idempotency-key": invocation.key,
            **telemetry.headers_of(trace.get_current_span()),
        }
        request = self._client.build_request("POST", self._url, content=invocation.json, headers=headers)
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.send(request, stream=True)
                try:
                    return await self._read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            return Outcome(code="timeout", message=f"the server did not answer in {seconds:.3g} s")
        except RefusedError as error:
            return Outcome(code="failed", message=f"not called: {error}")
        except httpx2.ConnectTimeout:
            return Outcome(code="failed", message="the server cannot be reached: no connection in time")
        except httpx2.ConnectError as error:
            return Outcome(code="failed", message=f"the server cannot be reached: {error}")
        except httpx2.HTTPError as error:
            return Outcome(code="failed", message=f"the server's answer broke off: {type(error).__name__}")

    async def _read(self, response: httpx2.Response) -> Outcome:
        code, message, limit = "", "", self._max_output
        if not response.is_success:
            code, message, limit = "failed", f"the server answered {response.status_code}", min(limit, _FAILED_LIMIT)
            if response.has_redirect_location:
                message += ", a redirect, which is not followed"
        if response.headers.get("content-encoding", "identity") != "identity":
            return Outcome(code="failed", message="the server compressed its answer, which was not asked for")
        kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
        kept = bytearray()
        size = 0
        async for chunk in response.aiter_raw():
            size += len(chunk)
            kept += chunk[: limit + 1 - len(kept)]
            if len(kept) > limit:
                break
        if size and not (kind.startswith(_TEXT) or kind.endswith(_TEXT_ENDINGS)):
            return Outcome(not_shown("answer", kind, size if size <= limit else None), code, message)
        text, truncated = bounded(bytes(kept), limit)
        return Outcome(text, code, message, truncated=truncated)

    async def close(self) -> None:
        """Close the connections that are kept open between calls."""
        await self._client.aclose()
