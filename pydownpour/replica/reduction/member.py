"""A replica's life in one group: connections, and round after round.

A group's life ends from outside, when there is another group. When a connection breaks nothing more
can come of it: the coordinator is told, and the rest waits for the end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

import numpy as np

from pydownpour import limits
from pydownpour.errors import ConfigError, DownpourError, NotReady, PeerLost, UpgradeRefused
from pydownpour.layout import Flat
from pydownpour.net.access import Access, check_not_plain
from pydownpour.net.client import Client
from pydownpour.net.retry import Backoff
from pydownpour.policy import Reduction
from pydownpour.replica.coordination import Coordination
from pydownpour.replica.encoded import EncodedPush, Encoder, Found
from pydownpour.replica.fetcher import Fetcher
from pydownpour.replica.link import Link
from pydownpour.replica.outbox import Outbox
from pydownpour.replica.pushes import Base, Push
from pydownpour.replica.reduction import plan
from pydownpour.replica.reduction.gradient import Gradient
from pydownpour.replica.reduction.peers import Child, Parent, Peer
from pydownpour.replica.reduction.round import Round
from pydownpour.wire import messages
from pydownpour.wire.frames import GroupMark, Kind
from pydownpour.wire.messages import Group

log = logging.getLogger(__name__)

ROUTE: Final = "/v1/reduce"


@final
@dataclasses.dataclass(eq=False)
class Means:
    """What a replica has for all the groups it will be in.

    Attributes:
        outbox: Of sums, to the shards.
        given: Its gradients that are not answered for, oldest first.
        moved: Set when anything has happened.
        answered: Called with a gradient that every fragment has, or that was refused for a reason.
        lost: Called with one that is given up.
    """

    coordination: Coordination
    links: Sequence[Link]
    fetcher: Fetcher
    reduction: Reduction
    access: Access
    outbox: Outbox
    encoder: Encoder
    answered: Callable[[Gradient, str], object]
    lost: Callable[[Gradient], object]
    given: deque[Gradient] = dataclasses.field(default_factory=deque)
    moved: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    sum: Flat = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    sums_pushed: int = 0
    last: tuple[EncodedPush, Push] | None = None
    """The last sum that was pushed, and its memory."""

    def room(self) -> EncodedPush:
        """Memory for the next sum: that of the last one, if no connection can be reading it."""
        if self.last is not None:
            room, push = self.last
            if push.is_settled and not push.refused:
                return room
        return self.encoder.room()


@final
class Member:
    """One replica in one group.

    Args:
        group: Which.
        me: The replica and its incarnation.
        means: What it has.

    Attributes:
        place: Its own; None: it is not in this group.
        children: The connections to its children, by their places.
        parent: The one to its parent.
    """

    def __init__(self, group: Group, me: tuple[int, int], means: Means) -> None:
        self.group, self._me, self._means = group, me, means
        index = plan.index_of(group, *me)
        self.place = None if index is None else plan.place_in(group, index)
        self.children: dict[int, Child] = {}
        self.parent: Parent | None = None
        self._round: Round | None = None
        self._down: str | None = None
        """Why the round was not applied, or "": its parameters are here."""
        self._broke: PeerLost | None = None
        self._is_over = False
        self._client: Client | None = None
        """Of our parent."""
        self._weights = np.zeros(means.encoder.fragments, np.float64)
        self.payload_sent = self.payload_received = 0
        """Bytes of elements, over connections that are gone."""

    # -- what others ask -------------------------------------------------------------------------

    def accept(self, index: int) -> Child:
        """The child at a place calls.

        Raises:
            NotReady: it is connected: one of the two connections is broken.
        """
        if index in self.children or self._is_over:
            raise NotReady(f"replica {self.group.members[index].id} has a connection here")
        encoder = self._means.encoder
        child = self.children[index] = Child(
            self, index,
            len_=self._means.coordination.layout.len, fragment_len=encoder.fragment_len,
            limits_=self._means.coordination.limits,
        )  # fmt: skip
        return child

    def traffic(self) -> tuple[int, int]:
        """Bytes of elements (given to, got from) others."""
        peers = [*self.children.values(), *([self.parent] if self.parent else [])]
        return (
            self.payload_sent + sum(peer.payload_sent for peer in peers),
            self.payload_received + sum(peer.payload_received for peer in peers),
        )

    def waiting_for(self) -> str:
        """Whom our gradient waits for, in words; "" if for nobody of the group."""
        place, round, members = self.place, self._round, self.group.members
        if place is None:
            return "a group of replicas to reduce with"
        late = [child for child in place.children if child not in self.children]
        late += [child for child in (round.missing if round else ()) if child not in late]
        if late:
            named = ", ".join(str(members[child].id) for child in sorted(late))
            return f"the sum of replica {named} (group {self.group.number})"
        if place.parent is None:
            return ""
        above = members[place.parent]
        connected = "" if self.parent is not None else ", not connected"
        return f"replica {above.id} at {above.url} (group {self.group.number}{connected})"

    def end(self) -> None:
        """There is another group: its connections end with this one."""
        self._is_over = True
        peers: list[Peer] = [*self.children.values()]
        for peer in peers + ([self.parent] if self.parent is not None else []):
            self._forget(peer)
            peer.abort()

    # -- its life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            ConfigError, ...: what trying again cannot help.
        """
        if self.place is None:
            await self._outside()
            return
        try:
            if self.place.parent is not None:
                await self._call(self.place.parent)
            await self._rounds(self.place)
        except DownpourError as error:
            if not error.retryable:
                raise
            log.info("group %d: %s", self.group.number, error)
            self._means.coordination.look_again(broke=self.group.number)
            await asyncio.Event().wait()
        finally:
            if self._client is not None:
                await self._client.close()

    async def _outside(self) -> None:
        """A gradient that is given all the same is given up, unless we are about to be a member.

        Whoever has just been lent work is one in the coordinator's next word.
        """
        means = self._means
        while True:
            await self._until(lambda: bool(means.given))
            await means.coordination.look_now()
            if self.group.number and means.given and not self._is_over:
                means.lost(means.given.popleft())

    async def _rounds(self, place: plan.Place) -> None:
        means, number, has_looked = self._means, 0, False
        while True:
            number += 1
            round = self._round = Round(number, means.encoder.fragments, place.children)
            self._down = None
            for child in self.children.values():
                self._told(round, child)
            gradient = await self._next_gradient(has_looked)
            has_looked = True
            await self._add_up(round, gradient, place)
            if place.parent is None:
                self._down = await self._push_sum(round, gradient)
            words = await self._give_down(place, number)
            _ = means.given.popleft()
            means.answered(gradient, words)

    async def _next_gradient(self, has_looked: bool) -> Gradient:
        """The next one to give, once we know what the shards have of it."""
        means = self._means
        while True:
            await self._until(lambda: bool(means.given))
            if not has_looked:
                for link in means.links:
                    link.group = GroupMark(self.group.number, self.group.proof)
                await means.fetcher.bring()
                has_looked = True
            gradient = means.given[0]
            verdict = gradient.joins(self.group.number, self.group.since, means.fetcher.versions)
            if verdict == "give":
                return gradient
            _ = means.given.popleft()
            if verdict == "done":
                means.answered(gradient, "")
            else:
                means.lost(gradient)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; PeerLost: a connection broke before."""
        while not holds():
            if self._broke is not None:
                raise self._broke
            self._means.moved.clear()
            await self._means.moved.wait()

    def _child(self, index: int) -> Child:
        """The connection to a child; PeerLost: it broke."""
        child = self.children.get(index)
        if child is None:
            raise self._broke or PeerLost("the connection to a child broke")
        return child

    # -- adding up -------------------------------------------------------------------------------

    async def _add_up(self, round: Round, gradient: Gradient, place: plan.Place) -> None:
        """Add what has come, fragment by fragment, and send it on."""
        means, parent = self._means, self.parent
        if not len(means.sum):
            means.sum = np.empty(means.coordination.layout.len, np.float32)
        round.give()
        while True:
            await self._until(lambda: bool(round.ready()) or round.is_summed)
            if round.is_summed:
                break
            for fragment in round.ready():
                self._add(gradient, fragment, place.children)
                round.add(range(fragment, fragment + 1))
                if parent is not None:
                    values = means.sum[self._part(fragment)]
                    word = int(self._weights.view(np.uint64)[fragment])
                    await parent.send(Kind.SUM, fragment, values, word, round=round.number)
        if parent is not None:
            parent.say_whole(round.number, *round.totals(1, gradient.push.samples))

    def _part(self, fragment: int) -> slice:
        length = self._means.encoder.fragment_len
        return slice(fragment * length, (fragment + 1) * length)

    def _add(self, gradient: Gradient, fragment: int, children: Sequence[int]) -> None:
        """One fragment: our own, where it has not got it, then the children's, in their order."""
        part = self._part(fragment)
        target, weight = self._means.sum[part], 0.0
        push = gradient.push
        if gradient.missing[fragment]:
            weight = float(max(push.samples, 1)) if self._means.reduction.by_samples else 1.0
            frame = push.encoded.frames(fragment, 1)[limits.HEADER_SIZE :]
            np.multiply(np.frombuffer(frame, np.float32), np.float32(weight), out=target)
        else:
            target[:] = 0.0
        for one in children:
            child = self._child(one)
            target += child.values[part]
            weight += float(child.weights[fragment])
        self._weights[fragment] = weight

    # -- the first member ------------------------------------------------------------------------

    async def _push_sum(self, round: Round, gradient: Gradient) -> str:
        """Push the sum to the shards and fetch; why it was not applied, or "".

        Raises:
            NotReady: another group has taken the place of ours: nobody can say yet what of it was
                applied, and that group's members will look.
        """
        means, encoder = self._means, self._means.encoder
        given = np.flatnonzero(self._weights > 0)
        if means.reduction.mean:
            for fragment in map(int, given):
                means.sum[self._part(fragment)] *= np.float32(1.0 / self._weights[fragment])
        means.sums_pushed += 1
        versions, room, found = means.fetcher.versions.copy(), means.room(), Found()
        found.add(
            encoder.encode(
                encoder.whole(means.sum), room,
                push=means.sums_pushed, base=versions, first=0, count=encoder.fragments,
            )
        )  # fmt: skip
        if found.bad:
            name, index = encoder.place(found.first_bad)
            return f"the sum of round {round.number} is not finite, first in {name!r} at {index}"
        room.left_out = [int(one) for one in np.flatnonzero(self._weights <= 0)]
        push = Push(
            index=means.sums_pushed,
            encoded=room,
            base=Base(versions, (self.group.number,) * len(means.links)),
            clock=gradient.push.clock,
            samples=round.totals(1, gradient.push.samples)[1],
            norm=found.norm,
        )
        means.last = room, push
        means.outbox.push(push)
        await means.coordination.standing.wait(lambda: push.is_settled)
        if push.refused > push.blamed:
            raise NotReady(f"another group has taken the place: {push.reason}")
        await means.fetcher.bring()
        return push.reason

    async def _give_down(self, place: plan.Place, number: int) -> str:
        """The parameters of a round to the children, each fragment when it is here.

        Returns:
            Why the round was not applied, or "".
        """
        means, parent = self._means, self.parent
        fetcher = means.fetcher

        def is_here(fragment: int) -> bool:
            landed = parent.landed_of(number) if parent is not None else 0
            return self._down is not None or landed > fragment

        for fragment in range(means.encoder.fragments if place.children else 0):
            await self._until(functools.partial(is_here, fragment))
            values, version = fetcher.staging[self._part(fragment)], int(fetcher.versions[fragment])
            for index in place.children:
                child = self._child(index)
                await child.send(Kind.PARAMETERS, fragment, values, version, round=number)
        await self._until(lambda: self._down is not None)
        words, lsns = self._down or "", [link.known.lsn for link in means.links]
        for index in place.children:
            self._child(index).say_whole(number, words=words, lsns=lsns)
        return words

    # -- connections -----------------------------------------------------------------------------

    async def _call(self, place: int) -> None:
        """Open the connection to our parent; tried again until there is another group."""
        means, member = self._means, self.group.members[place]
        coordination, fetcher = means.coordination, means.fetcher
        check_not_plain(coordination.url, member.url, f"replica {member.id}")
        headers = {
            messages.HEADER_REPLICA: str(self._me[0]),
            messages.HEADER_INCARNATION: str(self._me[1]),
            messages.HEADER_SECRET: member.secret,
            messages.HEADER_GROUP: str(self.group.number),
        }
        backoff = Backoff(None, coordination.limits)
        client = Client(member.url, access=means.access, limits=coordination.limits)
        self._client = client
        while self.parent is None:
            parent = Parent(
                self, place,
                staging=fetcher.staging, versions=fetcher.versions,
                fragment_len=means.encoder.fragment_len, limits_=coordination.limits,
            )  # fmt: skip
            try:
                await client.upgrade(ROUTE, headers, parent)
                self.parent = parent
            except UpgradeRefused as error:
                raise ConfigError(
                    f'{error}. Replicas that reduce among themselves need it: use reduce="shards"'
                ) from error
            except DownpourError as error:
                log.info("replica %d: %s", member.id, error)
                coordination.look_again()
                await asyncio.sleep(backoff.next_s())

    # -- what connections report -----------------------------------------------------------------

    def on_progress(self, peer: Peer) -> None:
        """More of a child's sum, or of the parameters, is here."""
        if isinstance(peer, Child) and self._round is not None:
            self._told(self._round, peer)
        self._means.moved.set()

    def on_whole(self, peer: Peer, round: int, words: str, lsns: Sequence[int]) -> None:
        """A child's sum is whole, or the round is."""
        if not isinstance(peer, Child):
            self._down = words
            for link, lsn in zip(self._means.links, lsns, strict=False):
                link.known = link.known._replace(lsn=max(link.known.lsn, lsn))
        self.on_progress(peer)

    def _told(self, round: Round, child: Child) -> None:
        """What a child has sent of a round; it may be in the next one already."""
        round.landed(child.place, child.landed_of(round.number))
        if child.rounds >= round.number:
            round.whole(child.place, *child.totals)

    def on_lost(self, peer: Peer) -> None:
        """It broke, or its group is over."""
        if peer is self.parent or self.children.get(peer.place) is peer:
            self._forget(peer)
            who = f"replica {self.group.members[peer.place].id}"
            self._broke = PeerLost(f"the connection to {who} broke: {peer.error or 'closed'}")
            self._means.moved.set()

    def _forget(self, peer: Peer) -> None:
        self.payload_sent += peer.payload_sent
        self.payload_received += peer.payload_received
        if peer is self.parent:
            self.parent = None
        else:
            self.children.pop(peer.place, None)
