"""Errors across the wire: which HTTP status and slug each error has, both ways.

A handler raises one of our errors; the server answers its status and a ``Problem`` body; the
client raises the same class again with the same words. So an error reads alike on both ends.
"""

from __future__ import annotations

from typing import Final

from pydownpour import errors
from pydownpour.errors import DownpourError
from pydownpour.fields import clip
from pydownpour.wire import messages
from pydownpour.wire.messages import Problem

TABLE: Final[tuple[tuple[type[DownpourError], str, int], ...]] = (
    # Most derived first: the first class that matches names the problem.
    (errors.OriginRefused, "origin", 403),
    (errors.AuthError, "unauthorized", 401),
    (errors.LayoutMismatch, "mismatch", 409),
    (errors.Fenced, "fenced", 409),
    (errors.WrongEpoch, "epoch", 409),
    (errors.UpgradeRefused, "upgrade", 426),
    (errors.NotReady, "waiting", 503),
    (errors.LimitExceeded, "limit", 429),
    (errors.TooLarge, "size", 413),
    (errors.JobFailed, "ended", 410),
    (errors.UnsupportedArray, "array", 422),
    (errors.ConfigError, "invalid", 400),
    (errors.RemoteProtocolError, "protocol", 400),
    (errors.ClosedError, "closed", 410),
)
RETRY_AFTER_S: Final = 0.2
"""What a retryable problem asks the caller to wait."""


def describe(error: DownpourError) -> tuple[int, Problem]:
    """The status and body that tell a peer about an error."""
    for kind, code, status in TABLE:
        if isinstance(error, kind):
            retry = RETRY_AFTER_S if error.retryable else None
            entry = error.entry if isinstance(error, errors.WrongEpoch) else None
            return status, Problem(
                code=code, message=clip(str(error)), retry_after_s=retry, entry=entry
            )
    return 500, Problem(code="internal", message=clip(str(error)))


def revive(status: int, body: bytes, *, peer: str) -> DownpourError:
    """The error a peer described, or words about an answer that is not ours."""
    known = parse(body)
    if known is not None:
        for kind, code, _ in TABLE:
            if code == known.code:
                if known.entry is not None:
                    return kind(known.message, peer=peer, entry=known.entry)
                return kind(known.message, peer=peer)
        return errors.RemoteProtocolError(f"{peer}: {known.message}", peer=peer)
    text = body[:200].decode("utf-8", "replace").strip()
    if status == 413:
        return errors.TooLarge(
            f"something before {peer} refuses bodies of this size (HTTP 413: {text!r})", peer=peer
        )
    return errors.RemoteProtocolError(
        f"{peer} answered HTTP {status}, not as a pydownpour peer would: {text!r}; "
        "is the URL right?",
        peer=peer,
    )


def parse(body: bytes) -> Problem | None:
    """The Problem in a body, or None if it is something else's page."""
    try:
        return messages.decode(Problem, body)
    except errors.RemoteProtocolError:
        return None
