"""Who may speak for whom: secrets that are computed, not kept.

A job's token says that somebody belongs to the job, not who it is. So each life of a role gets a
secret when it is taken in, the keyed hash of who it is, and shows it with everything it sends::

    coordinator   key of the job --"replicas"--> key of the replicas, handed to each shard
    replica       HMAC(key of the replicas, "replica", id, incarnation)
    shard         HMAC(key of the job, "shard", index, incarnation)

Whoever has the key can check a secret and needs no memory of it; nobody without the key can speak
for another, or for a life that was never given. Shards know the replicas' key only, so they cannot
speak for each other.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, final

from pydownpour.errors import AuthError, RemoteProtocolError

KEY_SIZE: Final = 32
"""Bytes of a key: as many as the hash has."""
READER: Final = 0
"""Id and incarnation of the coordinator where it reads from shards: nobody who could push."""


@final
class Keeper:
    """Makes and checks the secrets of one key. Its repr does not show it.

    Args:
        key: Random bytes nobody else knows.
    """

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_SIZE
        self._key = key

    @classmethod
    def from_text(cls, text: str) -> Keeper:
        """Of a key as it travels.

        Raises:
            RemoteProtocolError: it is none.
        """
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_SIZE:
            raise RemoteProtocolError(f"a key must be {KEY_SIZE} bytes in hex")
        return cls(key)

    def text(self) -> str:
        """The secret as it travels, in hex."""
        return self._key.hex()

    def derive(self, what: str) -> Keeper:
        """Of a key that can be given away: this one cannot be computed from it."""
        return Keeper(self._hash(what))

    def secret(self, role: str, who: int, incarnation: int) -> str:
        """What one life of a role shows, in hex."""
        return self._hash(f"{role}|{who}|{incarnation}").hex()

    def check(self, role: str, who: int, incarnation: int, secret: str) -> None:
        """Compare in constant time.

        Raises:
            AuthError: it is another's, or none.
        """
        expected = self.secret(role, who, incarnation).encode()
        if not hmac.compare_digest(secret.encode("utf-8", "replace"), expected):
            raise AuthError(
                f"{role} {who} incarnation {incarnation} did not show the secret that it was given "
                "when it was taken in; nobody speaks for another"
            )

    def _hash(self, text: str) -> bytes:
        return hmac.new(self._key, text.encode(), hashlib.sha256).digest()
