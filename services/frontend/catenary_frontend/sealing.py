"""Authenticated encryption of what clients carry for us. The key lives in a file that all frontends of a mesh share.

A token is `base64url(version ‖ nonce ‖ ciphertext ‖ tag)`: AES-256-GCM, the version byte authenticated with the rest.
"""

import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"
_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_HEAD_BYTES = len(_VERSION) + _NONCE_BYTES


class Sealer:
    """`catenary_protocols.apis.sealed.Sealed` with the key in `key_path`, made there (mode 0600) if there is none.

    Raises `OSError` when the key cannot be read or made, `ValueError` when the file holds no key.
    """

    def __init__(self, key_path: Path) -> None:
        self._cipher = AESGCM(_key_in(key_path))

    def seal(self, text: str) -> str:
        """The text as a token; two tokens of one text differ."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return urlsafe_b64encode(_VERSION + nonce + self._cipher.encrypt(nonce, text.encode(), _VERSION)).decode()

    def open(self, token: str) -> str | None:
        """The text in a token of this key; None for any other string."""
        try:
            raw = urlsafe_b64decode(token.encode())
            if raw[:1] != _VERSION or len(raw) < _HEAD_BYTES + _TAG_BYTES:
                return None
            return self._cipher.decrypt(raw[1:_HEAD_BYTES], raw[_HEAD_BYTES:], _VERSION).decode()
        except (ValueError, InvalidTag):  # no base64, or not sealed with this key
            return None


def _key_in(path: Path) -> bytes:
    if not path.exists():
        _make_key(path)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path} holds {len(key)} bytes; a key has {_KEY_BYTES}")
    return key


def _make_key(path: Path) -> None:
    """Whole or not at all, and of several frontends that start at once only the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
    with suppress(FileExistsError):
        path.hardlink_to(draft)
    draft.unlink()
