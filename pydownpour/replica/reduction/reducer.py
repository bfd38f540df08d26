"""A replica that is a member of one group after the other.

    from the outbox            this member's gradient, which the user's thread waits for
    from its children          the sums of their subtrees
    to its parent              its gradient and these, added; from there the new parameters
    the first member           pushes the sum to the shards instead, as any push, and fetches

To the outbox it is a link like those to shards: it takes a push, and answers for it. What goes to
the shards has numbers of its own, for the same gradients may be added up again in another group.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from pydownpour.errors import AuthError, ConfigError, NotReady
from pydownpour.fields import number
from pydownpour.net.access import Access
from pydownpour.net.server import Call, Route, UpgradeRoute
from pydownpour.policy import Reduction
from pydownpour.replica.coordination import Coordination
from pydownpour.replica.encoded import Encoder
from pydownpour.replica.fetcher import Fetcher
from pydownpour.replica.link import Link
from pydownpour.replica.outbox import Outbox
from pydownpour.replica.pushes import Portion, Push
from pydownpour.replica.reduction import plan
from pydownpour.replica.reduction.gradient import Gradient
from pydownpour.replica.reduction.member import ROUTE, Means, Member
from pydownpour.replica.reduction.peers import Child
from pydownpour.wire import messages
from pydownpour.wire.messages import Group

log = logging.getLogger(__name__)

NO_GROUP: Final = Group(number=0, proof="", members=[])
"""Before the coordinator has told of the first."""


@final
class Reducer:
    """One replica among others; on the session's loop.

    Args:
        coordination: Tells of groups.
        links: To the shards, for who is the first of a group.
        fetcher: Brings what is new from the shards, before and after.
        reduction: How gradients are added up.
        access: Token and TLS, for other members.

    Attributes:
        on_answered: Called with a push that is answered for. The outbox sets it.
    """

    def __init__(
        self,
        coordination: Coordination,
        links: Sequence[Link],
        fetcher: Fetcher,
        reduction: Reduction,
        access: Access,
    ) -> None:
        self._coordination, self._links, self._fetcher = coordination, links, fetcher
        self._me = (coordination.joined.replica, coordination.joined.incarnation)
        self.on_answered: Callable[[Push], object] = lambda push: None
        self._means = Means(
            coordination, links, fetcher, reduction, access,
            outbox=Outbox(links, coordination.standing),
            encoder=Encoder(coordination.layout, coordination.joined),
            answered=self._answered,
            lost=self._lost,
        )  # fmt: skip
        self._member = Member(NO_GROUP, self._me, self._means)
        self._regrouped = asyncio.Event()
        self._before = (0, 0)
        """Bytes of elements in the groups before."""
        coordination.regrouped = self.regroup

    # -- what the session asks -------------------------------------------------------------------

    def push(self, push: Push) -> None:
        """Take a gradient; it is answered for when every fragment has it, or it is given up."""
        push.portions += [Portion(push, link.fragments) for link in self._links]
        self._means.given.append(Gradient(push))
        self._means.moved.set()

    def traffic(self) -> tuple[int, int]:
        """Bytes of elements (given to, got from) other members."""
        sent, received = self._member.traffic()
        return self._before[0] + sent, self._before[1] + received

    @property
    def outbox(self) -> Outbox:
        """Of sums, to the shards."""
        return self._means.outbox

    @property
    def sums_pushed(self) -> int:
        """How many there were: those of a group's first member are pushed by it."""
        return self._means.sums_pushed

    def waiting_for(self) -> str:
        """Whom our gradient waits for, in words; "" if for nobody."""
        return self._member.waiting_for() if self._means.given else ""

    def routes(self) -> list[Route | UpgradeRoute]:
        """What it answers, where it listens."""
        return [Route("GET", "/healthz", _healthz, public=True), UpgradeRoute(ROUTE, self._accept)]

    def regroup(self, group: Group) -> None:
        """The coordinator has told of a newer group."""
        if group.number <= self._member.group.number:
            return
        if group.words:
            self._coordination.standing.fail(ConfigError(group.words))
            return
        names = ", ".join(str(member.id) for member in group.members)
        log.info("group %d of replicas that reduce: %s", group.number, names)
        self._member.end()
        self._before = self.traffic()
        self._member = Member(group, self._me, self._means)
        self._regrouped.set()

    # -- its life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in one group after the other, until cancelled."""
        while True:
            self._regrouped.clear()
            life = asyncio.ensure_future(self._member.run())
            newer = asyncio.ensure_future(self._regrouped.wait())
            try:
                await asyncio.wait([life, newer], return_when=asyncio.FIRST_COMPLETED)
                if life.done():
                    life.result()
            finally:
                life.cancel()
                newer.cancel()
                await asyncio.gather(life, newer, return_exceptions=True)

    def _answered(self, gradient: Gradient, words: str) -> None:
        """Every fragment has it, or the words say why not; the parameters behind it are here."""
        push = gradient.push
        push.reason, push.refused = words, int(bool(words))
        for portion in push.portions:
            portion.settle(portion.first, portion.count)
        self._fetcher.brought()
        self._end(push)

    def _lost(self, gradient: Gradient) -> None:
        """Nobody can say what has it: its unit is offered again, and nobody is to blame."""
        push = gradient.push
        push.by_policy, push.in_doubt = True, True
        push.reason = "this replica was left out of a group of those that reduce"
        log.info("push %d is given up: %s", push.index, push.reason)
        self._end(push)

    def _end(self, push: Push) -> None:
        push.open_portions = 0
        self.on_answered(push)

    # -- others call -----------------------------------------------------------------------------

    def _accept(self, call: Call) -> Child:
        """A child calls.

        Raises:
            NotReady: it goes by an older group, or by a newer one than we know.
            AuthError: it is none of ours.
        """
        theirs = number(call.headers.get(messages.HEADER_GROUP, ""), "group", 0xFFFF_FFFF)
        member, group = self._member, self._member.group
        if theirs > group.number:
            self._coordination.look_again()
        if theirs != group.number:
            raise NotReady(f"this replica goes by group {group.number}, and not by {theirs}")
        index = plan.index_of(group, *_identity(call.headers))
        children = member.place.children if member.place is not None else ()
        shown = call.headers.get(messages.HEADER_SECRET, "").encode("utf-8", "replace")
        if index not in children or not hmac.compare_digest(
            shown, group.members[index].secret.encode()
        ):
            raise AuthError(f"no member of group {group.number} that sends its sums here")
        return member.accept(index)


async def _healthz(call: Call) -> str:
    return "ok"


def _identity(headers: Mapping[str, str]) -> tuple[int, int]:
    """Who says that it calls."""
    replica, incarnation = (
        number(headers.get(header, ""), header, 0xFFFF_FFFF)
        for header in (messages.HEADER_REPLICA, messages.HEADER_INCARNATION)
    )
    return replica, incarnation
