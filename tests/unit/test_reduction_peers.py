"""The two ends of a connection between members of a group: what they take, and in which order."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from pydownpour import _core
from pydownpour.errors import RemoteProtocolError
from pydownpour.layout import raw
from pydownpour.limits import DEFAULT
from pydownpour.replica.reduction.peers import Child, Parent, Peer, Said, Verdict
from pydownpour.wire import frames
from pydownpour.wire.frames import Kind

LENGTH, FRAGMENT_LEN = 10, 2
SHARES = [range(3, 5), range(0), range(2)]
"""As of a ring: whole fragments, not ascending, and maybe none."""


@dataclasses.dataclass
class Owner:
    """Counts what it is told."""

    progress: int = 0

    def on_progress(self, peer: Peer) -> None:
        self.progress += 1

    def on_lost(self, peer: Peer) -> None: ...


def child() -> Child:
    return Child(Owner(), 1, SHARES, len_=LENGTH, fragment_len=FRAGMENT_LEN, limits_=DEFAULT)


def parent() -> Parent:
    return Parent(
        Owner(), 1, SHARES,
        staging=np.zeros(LENGTH, np.float32), versions=np.zeros(5, np.uint64),
        fragment_len=FRAGMENT_LEN, limits_=DEFAULT,
    )  # fmt: skip


def feed(peer: Peer, *pieces: bytes) -> None:
    """Bytes come in, however they are cut."""
    data = b"".join(pieces)
    while data:
        buffer = peer.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        peer.received(size)
        data = data[size:]


def elements(kind: Kind, *fragments: int, word: int = 7) -> bytes:
    return b"".join(
        _core.encode_frame(
            kind=kind, dtype=1, fragment=one, seq=1, version=word,
            payload=raw(np.full(FRAGMENT_LEN, one, np.float32)),
        )
        for one in fragments
    )  # fmt: skip


def verdict(round: int, squares: float, words: str = "") -> bytes:
    return frames.reduced(round=round, squares=squares, words=words)


async def test_shares_come_in_their_order_each_with_what_is_said_of_it() -> None:
    peer = child()
    feed(peer, elements(Kind.SUM, 3))
    assert (peer.landed_of(1), peer.said_of(1, 0)) == (1, None)
    feed(peer, elements(Kind.SUM, 4), frames.reduced(round=1, gradients=2, samples=9))
    assert peer.said_of(1, 0) == Said(2, 9, "", ())
    feed(peer, frames.reduced(round=1), elements(Kind.SUM, 0, 1), frames.reduced(round=1))
    assert peer.landed_of(1) == 4
    assert peer.payload_received == 4 * 8
    assert list(peer.weights.view(np.uint64)) == [7, 7, 0, 7, 7]
    feed(peer, elements(Kind.SUM, 3))
    assert (peer.landed_of(1), peer.landed_of(2)) == (4, 1), "it may be in the next round"
    assert peer.said_of(1, 0) == Said(2, 9, "", ()), "while its parent is in this one"


async def test_what_sums_are_is_said_before_any_is_pushed() -> None:
    peer = parent()
    feed(peer, verdict(1, 2.5), verdict(1, 0.0), verdict(1, 4.0, "too much"))
    assert [peer.verdict_of(1, share) for share in range(4)] == [
        Verdict(2.5, ""), Verdict(0.0, ""), Verdict(4.0, "too much"), None,
    ]  # fmt: skip
    feed(peer, elements(Kind.PARAMETERS, 3, 4), frames.reduced(round=1, lsns=[8, 9]))
    assert peer.said_of(1, 0) == Said(0, 0, "", (8, 9))
    assert peer.verdict_of(1, 0) == Verdict(2.5, ""), "whoever reads it late still does"


WRONG: list[tuple[str, Sequence[bytes]]] = [
    ("fragment 0 came as number 1", [elements(Kind.PARAMETERS, 0)]),
    ("fragment 0 came as number 5", [
        elements(Kind.PARAMETERS, 3, 4), frames.reduced(round=1), frames.reduced(round=1),
        elements(Kind.PARAMETERS, 0, 1, 0),
    ]),
    ("called whole with 1 of 2", [elements(Kind.PARAMETERS, 3), frames.reduced(round=1)]),
    ("share 0 of round 2", [elements(Kind.PARAMETERS, 3, 4), frames.reduced(round=2)]),
    ("round 2 is was said", [verdict(2, 1.0)]),
    ("number 4 of 3", [verdict(1, 1.0)] * 4),
    ("was said as number 1", [
        elements(Kind.PARAMETERS, 3, 4), frames.reduced(round=1), verdict(1, 1.0)
    ]),
    ("add up to nan", [verdict(1, math.nan)]),
    ("add up to -1", [verdict(1, -1.0)]),
    ("REDUCED payload", [_core.encode_frame(kind=Kind.REDUCED, seq=1, payload=b"short")]),
    ("REDUCED of", [
        _core.encode_frame(kind=Kind.REDUCED, seq=1, payload=struct.pack("<QQQ", 0, 0, 9))
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "pieces"), WRONG, ids=[words for words, _ in WRONG])
async def test_what_is_out_of_place_ends_the_connection(words: str, pieces: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        feed(parent(), *pieces)


async def test_a_child_says_nothing_of_what_is_to_be_pushed() -> None:
    with pytest.raises(RemoteProtocolError, match="was said as number"):
        feed(child(), verdict(1, 1.0))
