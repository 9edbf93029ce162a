"""API keys and what each may do. Rule: a key is never kept, only its digest, and a digest is compared whole.

A key is 256 random bits, so SHA-256 without salt or work factor is enough: there is nothing to guess.
"""

import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated

import msgspec
from catenary_protocols.conversation import Hints
from catenary_protocols.errors import RequestError
from msgspec import Meta, structs

PREFIX = "sk-catenary-"
HASH_PREFIX = "sha256-"
Names = tuple[str, ...]
Limit = Annotated[int, Meta(ge=1)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry `[[keys]]` of the file: one key and what it may do. Patterns: `*` and `?` as in file names.

    Attributes:
        hash: `sha256-` and 64 hexadecimal digits, as `catenary keys new` prints it.
        tenant: whose key it is: tenants share no sessions, no cache and no kept responses. "": of its own.
        models: patterns of model names it may ask for, as clients say them.
        requests_per_minute, tokens_per_minute, concurrent_turns: limits, None for none.
        mesh_tools: patterns of tools that its requests may have the mesh run.
        always_run: patterns of tools that the mesh runs whenever its requests declare them.
        max_priority, max_strict_priority: hints beyond are lowered to these.
    """

    hash: Annotated[str, Meta(pattern=f"^{HASH_PREFIX}[0-9a-f]{{64}}$")]
    tenant: str = ""
    models: Names = ("*",)
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    concurrent_turns: Limit | None = None
    mesh_tools: Names = ()
    always_run: Names = ()
    max_priority: int = 0
    max_strict_priority: int = 0

    @property
    def id(self) -> str:
        """What logs may call it."""
        return self.hash.removeprefix(HASH_PREFIX)[:12]

    @property
    def owner(self) -> str:
        """The tenant."""
        return self.tenant or self.id

    def may_use(self, model: str) -> bool:
        """Whether it may ask for a model of this name."""
        return _matches(model, self.models)

    def clamped(self, hints: Hints) -> Hints:
        """The hints within its rights."""
        return structs.replace(
            hints,
            priority=min(hints.priority, self.max_priority),
            strict_priority=min(hints.strict_priority, self.max_strict_priority),
        )

    def tools_to_run(self, asked: Names, declared: Names) -> Names:
        """Tools of the request that the mesh runs; `("*",)` asks for all. Raises `RequestError` for one it may not."""
        allowed = {name for name in declared if _matches(name, (*self.mesh_tools, *self.always_run))}
        for place, name in enumerate(asked):
            if name not in (*allowed, "*"):
                said = f"this key may not have the mesh run {name!r}"
                raise RequestError(said, code="permission_denied", field=f"nvext.run_tools[{place}]")
        wanted = allowed if "*" in asked else {*asked}
        return tuple(name for name in declared if name in wanted or _matches(name, self.always_run))


def _matches(name: str, patterns: Names) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[Policy, ...] = ()


def read_keys(text: str) -> tuple[Policy, ...]:
    """Entries of a file of keys; raises `ValueError` that says what is wrong and where."""
    policies = msgspec.convert(tomllib.loads(text), _File).keys
    known: set[str] = set()
    for place, one in enumerate(policies):
        if one.hash in known:
            raise ValueError(f"two entries have the same hash - at `$.keys[{place}].hash`")
        known.add(one.hash)
    return policies


def read_entry(entry: str) -> Policy:
    """An entry `hash` or `tenant:hash` of the environment; raises `ValueError`. It may use every model and tool."""
    tenant, _, digest = entry.rpartition(":")
    try:
        return msgspec.convert({"hash": digest, "tenant": tenant, "mesh_tools": ("*",)}, Policy)
    except msgspec.ValidationError:
        raise ValueError("an entry is no hash of a key; `catenary keys new` makes keys and their hashes") from None


def key_from(secret: bytes) -> str:
    """A key from 32 random bytes."""
    return PREFIX + secret.hex()


def hash_of(key: str) -> str:
    """What is kept of a key."""
    return HASH_PREFIX + sha256(key.encode()).hexdigest()


class KeyRing:
    """Finds a key's policy in one step; how long it takes tells nothing of any key."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self._by_id = {one.id: one for one in policies}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, key: str) -> Policy | None:
        """The policy of a key, or None."""
        digest = hash_of(key)
        one = self._by_id.get(digest.removeprefix(HASH_PREFIX)[:12])
        return one if one is not None and compare_digest(one.hash, digest) else None
