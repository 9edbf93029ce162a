"""Who calls? With keys configured, a known one is needed; each belongs to a tenant. Without, everyone is one tenant.

Only digests are kept, so that comparing tells nothing about a key and a dump of this process holds none.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256

from catenary_protocols.errors import RequestError


class Keys:
    """The keys that may call, from entries `key` or `tenant:key`."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._tenants: dict[bytes, str] = {}
        for entry in entries:
            tenant, _, key = entry.rpartition(":")
            digest = sha256(key.encode())
            self._tenants[digest.digest()] = tenant or digest.hexdigest()[:12]

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant_of(self, headers: Mapping[str, str]) -> str:
        """The caller's tenant ("" without keys); raises `RequestError`."""
        if not self._tenants:
            return ""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        key = headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")
        tenant = self._tenants.get(sha256(key.encode()).digest())
        if tenant is None:
            raise RequestError("a valid API key is needed", code="invalid_api_key")
        return tenant
