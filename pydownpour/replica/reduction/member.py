"""A replica's life in one group: connections, and round after round.

A group's life ends from outside, when there is another group. When a connection breaks nothing more
can come of it: the coordinator is told, and the rest waits for the end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import limits
from pydownpour.errors import ConfigError, DownpourError, NotReady, PeerLost, UpgradeRefused
from pydownpour.layout import Flat
from pydownpour.net.access import Access, check_not_plain
from pydownpour.net.client import Client
from pydownpour.net.retry import Backoff
from pydownpour.policy import Reduction
from pydownpour.policy.reductions import Place, Share
from pydownpour.replica.coordination import Coordination
from pydownpour.replica.encoded import EncodedPush, Encoder, Found
from pydownpour.replica.fetcher import Fetcher
from pydownpour.replica.link import Link
from pydownpour.replica.outbox import Outbox
from pydownpour.replica.pushes import Base, Push
from pydownpour.replica.reduction import plan
from pydownpour.replica.reduction.gradient import Gradient
from pydownpour.replica.reduction.peers import Child, Parent, Peer, Said, Verdict
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
@dataclasses.dataclass(frozen=True, slots=True)
class _Sum:
    """What one member is to push of a round.

    Attributes:
        room: Its records; None: nobody has given anything to it.
        versions: That it is for.
        verdict: What it is.
    """

    room: EncodedPush | None
    versions: NDArray[np.uint64]
    verdict: Verdict


def _what_comes(place: Place) -> dict[int, tuple[int, int]]:
    comes = {}
    for parent in place.parents:
        before = 0
        for which, share in enumerate(place.from_parent(parent)):
            comes[share.number] = which, before
            before += len(share.fragments)
    return comes


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
        parents: Those to its parents.
    """

    def __init__(self, group: Group, me: tuple[int, int], means: Means) -> None:
        self.group, self._me, self._means = group, me, means
        index = plan.index_of(group, *me)
        self.place = (
            None
            if index is None
            else plan.place_in(group, index, means.reduction, means.encoder.fragments)
        )
        self.children: dict[int, Child] = {}
        self.parents: dict[int, Parent] = {}
        self._round: Round | None = None
        self._broke: PeerLost | None = None
        self._is_over = False
        self._clients: list[Client] = []
        """Of our parents."""
        self._comes: dict[int, tuple[int, int]] = {}
        """Share -> its place among what its parent gives, and the fragments before it."""
        if self.place is not None:
            self._comes = _what_comes(self.place)
        self._heard: dict[int, int] = {}
        """Of each child, of how many shares of the round it has said what they are."""
        self._weights = np.zeros(means.encoder.fragments, np.float64)
        self.payload_sent = self.payload_received = 0
        """Bytes of elements, over connections that are gone."""

    # -- what others ask -------------------------------------------------------------------------

    def accept(self, index: int) -> Child:
        """The child at a place calls.

        Raises:
            NotReady: it is connected: one of the two connections is broken.
        """
        if index in self.children or self._is_over or self.place is None:
            raise NotReady(f"replica {self.group.members[index].id} has a connection here")
        encoder = self._means.encoder
        child = self.children[index] = Child(
            self, index, [share.fragments for share in self.place.from_child(index)],
            len_=self._means.coordination.layout.len, fragment_len=encoder.fragment_len,
            limits_=self._means.coordination.limits,
        )  # fmt: skip
        return child

    def traffic(self) -> tuple[int, int]:
        """Bytes of elements (given to, got from) others."""
        peers = self._peers()
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
        for parent in place.parents:
            above = members[parent]
            connected = "" if parent in self.parents else ", not connected"
            return f"replica {above.id} at {above.url} (group {self.group.number}{connected})"
        return ""

    def end(self) -> None:
        """There is another group: its connections end with this one."""
        self._is_over = True
        for peer in self._peers():
            self._forget(peer)
            peer.abort()

    def _peers(self) -> list[Peer]:
        return [*self.children.values(), *self.parents.values()]

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
            for parent in self.place.parents:
                await self._call(parent, self.place)
            await self._rounds(self.place)
        except DownpourError as error:
            if not error.retryable:
                raise
            log.info("group %d: %s", self.group.number, error)
            self._means.coordination.look_again(broke=self.group.number)
            await asyncio.Event().wait()
        finally:
            for client in self._clients:
                await client.close()

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

    async def _rounds(self, place: Place) -> None:
        means, number, has_looked = self._means, 0, False
        while True:
            number += 1
            round = self._round = Round(number, place)
            self._heard.clear()
            for child in self.children.values():
                self._told(round, child)
            gradient = await self._next_gradient(has_looked)
            has_looked = True
            round.give()
            for share in place.shares:
                await self._add_up(round, gradient, share)
            own = self._encode_own(number, place)
            verdict = await self._agree(number, place, own.verdict)
            words = verdict.words or await self._push_own(round, gradient, place, own, verdict)
            if not (verdict.words and place.is_shared):  # then everybody knows already
                words = await self._give_down(number, place, words)
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

    def _parent(self, index: int) -> Parent:
        """The connection to a parent; PeerLost: it broke."""
        parent = self.parents.get(index)
        if parent is None:
            raise self._broke or PeerLost("the connection to a parent broke")
        return parent

    # -- adding up -------------------------------------------------------------------------------

    async def _add_up(self, round: Round, gradient: Gradient, share: Share) -> None:
        """Add what has come of a share, fragment by fragment, and send it on."""
        means = self._means
        if not len(means.sum):
            means.sum = np.empty(means.coordination.layout.len, np.float32)
        while True:
            await self._until(lambda: bool(round.ready(share)) or round.is_summed(share))
            if round.is_summed(share):
                break
            for fragment in round.ready(share):
                self._add(gradient, fragment, share.children)
                round.add(share, range(fragment, fragment + 1))
                if share.parent is not None:
                    values = means.sum[self._part(fragment)]
                    word = int(self._weights.view(np.uint64)[fragment])
                    parent = self._parent(share.parent)
                    await parent.send(Kind.SUM, fragment, values, word, round=round.number)
        if share.parent is not None:
            totals = round.totals(share, 1, gradient.push.samples)
            self._parent(share.parent).say_whole(round.number, *totals)

    def _part(self, fragment: int) -> slice:
        length = self._means.encoder.fragment_len
        return slice(fragment * length, (fragment + 1) * length)

    @np.errstate(over="ignore", invalid="ignore")  # who pushes the sum looks whether it is finite
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

    # -- what is the sum of all ------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")
    def _encode_own(self, number: int, place: Place) -> _Sum:
        """Make the records of the sums that this member is to push."""
        means, encoder = self._means, self._means.encoder
        versions = means.fetcher.versions.copy()
        own = [fragment for share in place.own for fragment in share.fragments]
        given = {fragment for fragment in own if self._weights[fragment] > 0}
        if not given:
            return _Sum(None, versions, Verdict(0.0, ""))
        if means.reduction.mean:
            for fragment in given:
                means.sum[self._part(fragment)] *= np.float32(1.0 / self._weights[fragment])
        room, found = means.room(), Found()
        for share in place.own:
            if share.fragments:
                found.add(
                    encoder.encode(
                        encoder.whole(means.sum), room, push=means.sums_pushed + 1, base=versions,
                        first=share.fragments.start, count=len(share.fragments),
                    )
                )  # fmt: skip
        room.left_out = [one for one in range(encoder.fragments) if one not in given]
        words = ""
        if found.bad:
            name, index = encoder.place(found.first_bad)
            words = f"the sum of round {number} is not finite, first in {name!r} at {index}"
        return _Sum(room, versions, Verdict(found.squares, words))

    async def _agree(self, number: int, place: Place, own: Verdict) -> Verdict:
        """What all sums are together: where several members push, all do or none does.

        Returns:
            Our own, where nobody else pushes.
        """
        if not place.is_shared:
            return own
        verdicts: dict[int, Verdict] = {}
        for share in reversed(place.shares):
            verdict = own
            if share.parent is not None:
                verdict = await self._verdict_of(number, share.parent, share.number)
            verdicts[share.number] = verdict
            for index in share.children:
                self._child(index).say_verdict(number, verdict)
        ordered = [verdicts[one] for one in sorted(verdicts)]
        return Verdict(
            math.fsum(one.squares for one in ordered),
            next((one.words for one in ordered if one.words), ""),
        )

    async def _verdict_of(self, number: int, parent: int, share: int) -> Verdict:
        """What a parent says of a share's sum, as soon as it does."""
        which, _ = self._comes[share]
        await self._until(lambda: self._parent(parent).verdict_of(number, which) is not None)
        verdict = self._parent(parent).verdict_of(number, which)
        assert verdict is not None
        return verdict

    async def _push_own(
        self, round: Round, gradient: Gradient, place: Place, own: _Sum, verdict: Verdict
    ) -> str:
        """Push our sums to the shards and fetch what is new; why they were not applied, or "".

        Raises:
            NotReady: another group has taken the place of ours: nobody can say yet what of it was
                applied, and that group's members will look.
        """
        means = self._means
        if own.room is None:
            return ""
        means.sums_pushed += 1
        push = Push(
            index=means.sums_pushed,
            encoded=own.room,
            base=Base(own.versions, (self.group.number,) * len(means.links)),
            clock=gradient.push.clock,
            samples=round.totals(place.own[0], 1, gradient.push.samples)[1],
            norm=math.sqrt(verdict.squares),
        )
        means.last = own.room, push
        means.outbox.push(push)
        await means.coordination.standing.wait(lambda: push.is_settled)
        if push.refused > push.blamed:
            raise NotReady(f"another group has taken the place: {push.reason}")
        if place.is_shared:
            for share in place.own:
                await means.fetcher.bring_some(share.fragments)
        else:
            await means.fetcher.bring()
        return push.reason

    async def _give_down(self, number: int, place: Place, words: str) -> str:
        """The parameters of a round to the children, each fragment when it is here.

        Args:
            number: Of the round.
            place: Our own.
            words: Why what we pushed was not applied, or "".

        Returns:
            Why some of the round was not applied, or "".
        """
        links = self._means.links
        lsns = [max(link.known.lsn, link.fetched.lsn) for link in links]
        said: dict[int, Said] = {}
        for share in reversed(place.shares):
            said[share.number] = await self._give_share(
                number, share, Said(0, 0, words, tuple(lsns))
            )
        for one in said.values():
            lsns = [max(two) for two in zip(lsns, one.lsns, strict=False)]
        for link, lsn in zip(links, lsns, strict=False):
            link.known = link.known._replace(lsn=max(link.known.lsn, lsn))
        return next((said[one].words for one in sorted(said) if said[one].words), "")

    async def _give_share(self, number: int, share: Share, own: Said) -> Said:
        """Those of one share, and what is said of it."""
        fetcher, parent = self._means.fetcher, share.parent
        which, before = self._comes.get(share.number, (0, 0))

        def is_here(count: int) -> bool:
            return parent is None or self._parent(parent).landed_of(number) >= before + count

        def said() -> Said | None:
            return own if parent is None else self._parent(parent).said_of(number, which)

        for count, fragment in enumerate(share.fragments if share.children else (), 1):
            await self._until(functools.partial(is_here, count))
            values, version = fetcher.staging[self._part(fragment)], int(fetcher.versions[fragment])
            for index in share.children:
                child = self._child(index)
                await child.send(Kind.PARAMETERS, fragment, values, version, round=number)
        await self._until(lambda: said() is not None)
        whole = said()
        assert whole is not None
        for index in share.children:
            self._child(index).say_whole(number, words=whole.words, lsns=whole.lsns)
        return whole

    # -- connections -----------------------------------------------------------------------------

    async def _call(self, above: int, place: Place) -> None:
        """Open the connection to a parent; tried again until there is another group."""
        means, member = self._means, self.group.members[above]
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
        self._clients.append(client)
        while above not in self.parents:
            parent = Parent(
                self, above, [share.fragments for share in place.from_parent(above)],
                staging=fetcher.staging, versions=fetcher.versions,
                fragment_len=means.encoder.fragment_len, limits_=coordination.limits,
            )  # fmt: skip
            try:
                await client.upgrade(ROUTE, headers, parent)
                self.parents[above] = parent
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
        """More of a child's sums, or of the parameters, is here, or something was said of it."""
        if isinstance(peer, Child) and self._round is not None:
            self._told(self._round, peer)
        self._means.moved.set()

    def _told(self, round: Round, child: Child) -> None:
        """What a child has sent of a round; it may be in the next one already."""
        assert self.place is not None
        round.landed(child.place, child.landed_of(round.number))
        shares = self.place.from_child(child.place)
        for which in range(self._heard.get(child.place, 0), len(shares)):
            said = child.said_of(round.number, which)
            if said is None:
                break
            self._heard[child.place] = which + 1
            round.whole(child.place, shares[which].number, said.gradients, said.samples)

    def on_lost(self, peer: Peer) -> None:
        """It broke, or its group is over."""
        if peer in self._peers():
            self._forget(peer)
            who = f"replica {self.group.members[peer.place].id}"
            self._broke = PeerLost(f"the connection to {who} broke: {peer.error or 'closed'}")
            self._means.moved.set()

    def _forget(self, peer: Peer) -> None:
        self.payload_sent += peer.payload_sent
        self.payload_received += peer.payload_received
        if isinstance(peer, Child):
            self.children.pop(peer.place, None)
        else:
            self.parents.pop(peer.place, None)
