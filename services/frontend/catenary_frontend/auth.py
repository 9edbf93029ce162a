"""Who calls, and may they? With keys, a known one is needed; each has its tenant, rights and limits.

Keys come from the environment and from a file, which is read again when it changes or at SIGHUP; a file that is wrong
changes nothing. Without keys, anyone may call. Limits are counted by this instance alone: behind three frontends a key
may do three times as much.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from catenary_protocols.apis.api import Draft
from catenary_protocols.conversation import Hints
from catenary_protocols.errors import RequestError
from catenary_runtime.config import ConfigError

from catenary_frontend.core.keys import KeyRing, Policy
from catenary_frontend.core.limits import Limits
from catenary_frontend.settings import keys_in, keys_of

log = structlog.get_logger()
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
LOOK_S = 1.0
"""How often the file is looked at."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Turns that run on a key's account."""

    limits: Limits
    turns: int

    def end(self, tokens: int) -> None:
        """They are over and have used so many tokens."""
        self.limits.end(time.monotonic(), self.turns, tokens)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. Without keys there is one caller, without a policy, who may do everything."""

    tenant: str = ""
    policy: Policy | None = None
    limits: Limits | None = None

    def may_use(self, model: str) -> bool:
        """Whether it may ask for a model of this name."""
        return self.policy is None or self.policy.may_use(model)

    def check(self, model: str) -> None:
        """Raises `RequestError` for a model it may not ask for, whether there is one or not."""
        if not self.may_use(model):
            raise RequestError(f"this key may not use model {model!r}", code="permission_denied", field="model")

    def hints(self, draft: Draft) -> Hints:
        """Hints within its rights."""
        return draft.hints if self.policy is None else self.policy.clamped(draft.hints)

    def tools_to_run(self, draft: Draft) -> tuple[str, ...]:
        """Names of tools the mesh runs for it; raises `RequestError`."""
        if self.policy is None:
            return draft.run_tools
        return self.policy.tools_to_run(draft.run_tools, tuple(tool.name for tool in draft.conversation.tools))

    def begin(self, turns: int) -> Lease | None:
        """Turns begin; raises `CapacityError`. Whoever gets a lease ends it."""
        if self.limits is None:
            return None
        self.limits.begin(time.monotonic(), turns)
        return Lease(self.limits, turns)

    def join(self) -> Lease | None:
        """It goes on with a turn that has its place already; what is told again is paid for again."""
        return Lease(self.limits, 0) if self.limits is not None else None


_ANYONE = Caller()
_Seen = tuple[int, int, int] | None


class Keys:
    """The keys that may call. Raises `ConfigError` when the file is wrong."""

    def __init__(self, entries: Iterable[str] = (), file: str = "") -> None:
        self._fixed = keys_in(entries)
        self._file = Path(file) if file else None
        self._closed = bool(self._fixed) or self._file is not None
        self._limits: dict[str, Limits] = {}
        self._ring = KeyRing(())
        self._again = asyncio.Event()
        self._seen = self._look()
        self.load()

    def __bool__(self) -> bool:
        """Whether a key is needed. An empty file lets nobody in."""
        return self._closed

    def __len__(self) -> int:
        return len(self._ring)

    def load(self) -> None:
        """Read the file; raises `ConfigError`, and changes nothing then."""
        try:
            filed = keys_of(str(self._file or ""))
        except (OSError, ValueError) as error:
            raise ConfigError(f"keys_file {self._file}: {error}", field="keys_file") from error
        policies = {one.hash: one for one in (*self._fixed, *filed)}
        now = time.monotonic()
        self._limits = {key: self._limits.get(key) or Limits(now) for key in policies}
        for key, one in policies.items():
            self._limits[key].set(now, one.requests_per_minute, one.tokens_per_minute, one.concurrent_turns)
        self._ring = KeyRing(policies.values())

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who it is; raises `RequestError` for a stranger."""
        if not self._closed:
            return _ANYONE
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        policy = self._ring.find(headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else ""))
        if policy is None:
            raise RequestError("a valid API key is needed", code="invalid_api_key")
        return Caller(policy.owner, policy, self._limits[policy.hash])

    def working(self, headers: Mapping[str, str]) -> Caller:
        """Who it is, for a request that makes the mesh work: it counts. Raises `RequestError` or `CapacityError`."""
        caller = self.caller(headers)
        if caller.limits is not None:
            caller.limits.request(time.monotonic())
        return caller

    async def watch(self, host: str) -> None:
        """Read the file again when it changes, and at SIGHUP. Without keys, warn when strangers may reach `host`."""
        if not self and host not in _LOOPBACK:
            log.warning("keys.none", host=host, error="whoever reaches this port may call")
        if self._file is None:
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._again.set)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._again.wait()
            seen = await asyncio.to_thread(self._look)
            if not self._again.is_set() and seen in {None, self._seen}:  # None: between two versions there may be none
                continue
            self._again.clear()
            self._seen = seen
            try:
                self.load()
            except ConfigError as error:
                log.warning("keys.not_loaded", error=error.message)
            else:
                log.info("keys.loaded", keys=len(self))

    def _look(self) -> _Seen:
        """What tells one version of the file from another."""
        if self._file is None:
            return None
        try:
            stat = self._file.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
