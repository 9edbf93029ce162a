"""Who may come in at the broker: the `accounts` of nats-server's configuration, from the rights of each role.

The mesh is one account, with a user for each role. Every tool that others execute is an account of its own, into which
the mesh exports that tool's calls, results and cancels: nothing else of the mesh exists there, not even as an answer.

The broker's own account exports one thing into the mesh's: which of the mesh's connections have ended, so that a dead
service is known before its beats are missed. Nobody has a user there.
"""

from collections.abc import Iterable, Mapping

from catenary_protocols.bus.permissions import Rights, executor_rights, rights
from catenary_protocols.bus.subjects import BROKER_DISCONNECTS, Role, Subjects, token

ADMIN = "catenary"
"""The user who may do everything in the mesh's account."""
MESH = "CATENARY"
SYSTEM = "$SYS"
"""nats-server's own account, under the name it has where none is configured."""
ANSWERS_FOR = "1h"
"""How long after a message its receiver may answer it, and an executor may wait for a call."""


def executor_user(tool: str) -> str:
    """User and account of a tool's executors."""
    return f"executor-{token(tool)}"


def accounts(
    subjects: Subjects, passwords: Mapping[Role, str], admin: str, executors: Mapping[str, str] | None = None
) -> dict[str, object]:
    """The configuration's `accounts`, to be written as JSON, which nats-server reads.

    Args:
        subjects: of the mesh's namespace.
        passwords: of each role that has a user.
        admin: password of `ADMIN`.
        executors: the password of each tool's executors.
    """
    executors = executors or {}
    users = [
        {"user": ADMIN, "password": admin},
        *(_user(role, password, rights(role, subjects)) for role, password in passwords.items()),
    ]
    exports = [export for tool in executors for export in _exports(subjects, tool)]
    ended = BROKER_DISCONNECTS.replace("*", MESH)
    mesh = {
        "jetstream": "enabled",
        "users": users,
        "imports": [{"stream": {"account": SYSTEM, "subject": ended}}],
        **({"exports": exports} if exports else {}),
    }
    return {
        SYSTEM: {"exports": [{"stream": ended, "accounts": [MESH]}]},
        MESH: mesh,
        **{executor_user(tool): _executor(subjects, tool, executors[tool]) for tool in executors},
    }


def _user(name: str, password: str, of: Rights) -> dict[str, object]:
    permissions = {
        "publish": {"allow": of.publish},
        "subscribe": {"allow": of.subscribe},
        **({"allow_responses": {"max": -1, "expires": ANSWERS_FOR}} if of.answers else {}),
    }
    return {"user": name, "password": password, "permissions": permissions}


def _executor(subjects: Subjects, tool: str, password: str) -> dict[str, object]:
    of = executor_rights(subjects, tool)
    return {
        "users": [_user(executor_user(tool), password, of)],
        "imports": [
            *({"service": {"account": MESH, "subject": one}} for one in of.publish),
            *({"stream": {"account": MESH, "subject": one}} for one in _heard(of)),
        ],
    }


def _exports(subjects: Subjects, tool: str) -> Iterable[dict[str, object]]:
    of, only = executor_rights(subjects, tool), [executor_user(tool)]
    for one in of.publish:
        more = {"response_type": "stream", "response_threshold": ANSWERS_FOR} if ".MSG.NEXT." in one else {}
        yield {"service": one, "accounts": only, **more}
    for one in _heard(of):
        yield {"stream": one, "accounts": only}


def _heard(of: Rights) -> list[str]:
    """What comes from the mesh: an inbox is the account's own."""
    return [one for one in of.subscribe if not one.startswith("_INBOX.")]
