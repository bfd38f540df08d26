"""Rules of the contract, broken on purpose: the test of the tests.

Each mutation takes one rule away from the services by monkeypatching, in a test process only;
nothing in the package knows of it. What lives in the Rust core is broken in its Python twin
(``tests/reference/inlet.py``), which is put in the core's place.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pytest

from pydownpour import _core
from pydownpour.coordinator.job_state import JobState
from pydownpour.coordinator.ledger import Ledger
from pydownpour.coordinator.membership import Member, Membership
from pydownpour.coordinator.recorder import Recorder
from pydownpour.coordinator.silence import Silence
from pydownpour.coordinator.units import Recorded
from pydownpour.limits import Limits
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.policy import Apply, Decision, PushInfo, from_wire
from pydownpour.policy.bfasgd import BFASGD
from pydownpour.policy.hard_sync import HardSync
from pydownpour.policy.model_averaging import ModelAveraging
from pydownpour.policy.pieces import scale
from pydownpour.policy.pieces.combine import EveryLive, Share
from pydownpour.policy.reductions import Place
from pydownpour.policy.softsync import Softsync
from pydownpour.policy.ssp import SSP
from pydownpour.replica.encoded import EncodedPush, Encoder
from pydownpour.replica.fetcher import Fetcher
from pydownpour.replica.link import Link
from pydownpour.replica.local_copy import LocalCopy
from pydownpour.replica.memory import PushMemory
from pydownpour.replica.outbox import Outbox
from pydownpour.replica.pushes import Base, Portion
from pydownpour.replica.reduction import member as reducing
from pydownpour.replica.reduction.gradient import Gradient
from pydownpour.replica.session import Session
from pydownpour.replica.trainer import Trainer
from pydownpour.replica.work import Leases
from pydownpour.shard import state, stream
from pydownpour.shard.filling import Filling
from pydownpour.shard.gate import EVERY_LSN, AckGate
from pydownpour.shard.handover import TakingOver
from pydownpour.shard.rounds import Clocks, Rounds
from pydownpour.shard.state import Admitted, Refused, Shard
from pydownpour.sim.faults import hostile
from pydownpour.sim.world import swarm
from pydownpour.sim.world.world import World
from pydownpour.storage.rundir import RunFolder
from pydownpour.waits import Waits
from pydownpour.wire import frames
from pydownpour.wire.messages import Stop
from pydownpour.wire.proof import Keeper
from tests.fakes.policies import EveryFew
from tests.reference import codecs
from tests.reference import inlet as twin
from tests.simulation import gates, journals

Patch = pytest.MonkeyPatch
TREE: Final = functools.partial(swarm.reduced, how="tree")
RING: Final = functools.partial(swarm.reduced, how="ring")


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A broken rule.

    Attributes:
        name: The rule, as it is broken.
        plans: Under which faults it should show.
        apply: Breaks it.
        notices: A word of the check that must notice.
        world: Makes the worlds.
        first: The seed to begin with: one that noticed, where many before it did not.
    """

    name: str
    plans: tuple[str, ...]
    apply: Callable[[Patch], None]
    notices: tuple[str, ...]
    world: Callable[[int, str], World] = swarm.world
    first: int = 0


def use_twin(patch: Patch, rules: twin.Rules | None = None) -> None:
    """Put the slow twin in the place of the core's inlet and windows."""
    begin = Shard.__init__

    def __init__(self: Shard, assigned: Any, *policy: Any, **rest: Any) -> None:
        measured = msgspec.structs.replace(assigned, max_norm=None)  # by the twin
        begin(self, measured, *policy, **rest)
        self.assigned, most = assigned, assigned.max_norm
        self._norm_max = math.inf if most is None else float(np.float32(most))
        codec = None if assigned.codec is None else codecs.of(*assigned.codec)
        self.store = twin.Shard(  # type: ignore[assignment]
            self.store, rules or twin.Rules(), codec, max_norm=assigned.max_norm
        )
        repeats = from_wire(assigned.policy, *policy[:1]).shard().repeats
        self.store.keep_gradients(self.limits.kept_size_max if repeats else 0)

    kinds = {
        "Settled": (_core.Settled, twin.Settled),
        "Refusal": (_core.Refusal, twin.Refusal),
        "Frame": _core.Frame,
    }
    patch.setattr(Shard, "__init__", __init__)
    patch.setattr(stream, "_core", SimpleNamespace(**kinds))
    patch.setattr(
        state,
        "_core",
        SimpleNamespace(ShardInlet=twin.Inlet, Shard=_core.Shard, Optimizer=_core.Optimizer),
    )


def ack_before_apply(patch: Patch) -> None:
    use_twin(patch, twin.Rules(apply_first=False))


def no_dedupe(patch: Patch) -> None:
    use_twin(patch, twin.Rules(dedupe=False))


def no_fence(patch: Patch) -> None:
    use_twin(patch, twin.Rules(fence=False))
    patch.setattr(Shard, "welcome", lambda *_: None)


def no_resend(patch: Patch) -> None:
    patch.setattr(Portion, "rewind", lambda self: None)


FRAGMENT_FIELDS: Final = (
    "kind", "codec", "dtype", "replica", "incarnation", "fragment", "version", "payload"
)  # fmt: skip


def renumber(encoded: EncodedPush, number: int) -> EncodedPush:
    """The same records of another push."""
    data = b""
    for frame in _core.scan_frames(encoded.frames(0, encoded.fragments)):
        names = (
            "kind",
            "codec",
            "dtype",
            "replica",
            "incarnation",
            "fragment",
            "version",
            "payload",
        )
        fields = {name: getattr(frame, name) for name in names}
        data += _core.encode_frame(**fields, seq=number)
    copy = EncodedPush(len(data), encoded.stride, encoded.fragments)
    copy.memory[:] = memoryview(data)
    return copy


def resend_under_new_numbers(patch: Patch) -> None:
    """Pushes of which nothing was answered get numbers that no push has."""
    open_transport = Link._open_transport
    fresh = itertools.count(1_000_000)

    def renumbered(self: Link) -> Any:
        for portion in self.queue:
            if portion.open == portion.count and portion.sent:
                portion.number = next(fresh)
                portion.encoded = renumber(portion.encoded, portion.number)
        return open_transport(self)

    patch.setattr(Link, "_open_transport", renumbered)


def no_push_window(patch: Patch) -> None:
    patch.setattr(Trainer, "must_wait", property(lambda self: False))
    patch.setattr(PushMemory, "take", lambda self: (self.fresh(), None))


def unit_counted_twice(patch: Patch) -> None:
    record = Ledger.record

    def forgetful(
        self: Ledger, replica: int, number: int, unit: int, lease_id: int, now: float
    ) -> Recorded:
        self._answers.pop(replica, None)
        open_pass = self._open.get(number)
        if open_pass is None or not open_pass.is_done(unit):
            return record(self, replica, number, unit, lease_id, now)
        start, stop = self.bounds(unit)
        self.units_done += 1
        self.samples_done += stop - start
        self.account(replica).units += 1
        self.account(replica).samples += stop - start
        return Recorded(True)

    patch.setattr(Ledger, "record", forgetful)


def lease_not_fenced(patch: Patch) -> None:
    def check(self: Membership, replica: int, incarnation: int, now: float) -> Member:
        member = self._members[replica]
        self._hear(member, now)
        return member

    patch.setattr(Membership, "check", check)


def streams_never_pause(patch: Patch) -> None:
    patch.setattr(StreamProtocol, "pause_writing", lambda self: None)


def nothing_reserved(patch: Patch) -> None:
    def release(self: Shard) -> None:
        self.reserved_bytes = 0

    patch.setattr(Shard, "release_inlet", release)


def fetch_goes_back(patch: Patch) -> None:
    """Once in a while a fetch is answered with what an earlier one was."""
    next_buffers = stream._Fetch.next_buffers
    kept: dict[int, list[Any]] = {}

    def stale(self: Any) -> list[Any] | None:
        store = id(self._store)
        if self._request == 1 and self._cursor == 0 and store not in kept:
            buffers = next_buffers(self)
            kept[store] = [bytes(memoryview(b)) for b in buffers or []]
            return buffers
        if self._request % 5 == 0 and self._cursor == 0 and not self.is_over and store in kept:
            self.is_over = True
            answer = frames.fetched(request=self._request, lsn=self._lsn, count=1)
            return [*kept[store][:-1], answer]
        return next_buffers(self)

    patch.setattr(stream._Fetch, "next_buffers", stale)


def unit_before_its_pushes(patch: Patch) -> None:
    async def report(self: Leases) -> None:
        while self._finished:
            ready = [self._finished.popleft()[1]]
            await self._coordination.complete(ready, [])
            self.completed += len(ready)

    patch.setattr(Leases, "_report", report)


def accrued_work_counts(patch: Patch) -> None:
    """A unit whose gradients no push carries yet waits for nothing."""

    def is_settled(self: Outbox, index: int) -> bool:
        return all(open_index > index for open_index in self.open)

    patch.setattr(Outbox, "is_settled", is_settled)


def books_stay_open(patch: Patch) -> None:
    """What is completed while the final parameters are read counts, too."""
    patch.setattr(JobState, "books_closed", property(lambda self: False))


def stopped(seed: int, plan: str) -> World:
    """A world of the sample oracle that its operator ends early."""
    world = swarm.counted(seed, plan)

    def stop() -> None:
        assert world.coordinator is not None
        world.coordinator._stop(Stop(reason="enough"), world.loop.now)

    world.loop.at(random.Random(seed).uniform(1.0, 2.0), stop)
    return world


def lost_settlement(patch: Patch) -> None:
    """A broken connection settles what was on its way."""
    open_transport = Link._open_transport

    def settled(self: Link) -> Any:
        for portion in list(self.queue):
            if portion.sent:
                answer = SimpleNamespace(
                    seq=portion.number, fragment=portion.first, count=portion.sent
                )
                self._settle(answer)  # type: ignore[arg-type]
        return open_transport(self)

    patch.setattr(Link, "_open_transport", settled)


def trouble_is_hidden(patch: Patch) -> None:
    patch.setattr(Recorder, "storage", property(lambda self: "ok"))


def events_are_not_kept(patch: Patch) -> None:
    patch.setattr(RunFolder, "append_events", lambda self, events, *, sync=False: None)


def silent_connections_are_kept(patch: Patch) -> None:
    patch.setattr(Link, "_watch", lambda self, transport: SimpleNamespace(stop=lambda: None))


def fetch_claims_its_end(patch: Patch) -> None:
    """A fetch that was cut off says it is as new as its last attempt."""
    done = Link.fetch_done

    def fetch_done(self: Link, age: frames.Age) -> None:
        self._fetching.floor = None
        done(self, age)

    patch.setattr(Link, "fetch_done", fetch_done)


def silence_is_death(patch: Patch) -> None:
    """As it was: a shard that is not heard is given up, whatever it holds and whoever hears it."""
    begin = Silence.__init__

    def impatient(self: Silence, *, limits: Limits, **rest: Any) -> None:
        begin(self, limits=dataclasses.replace(limits, shard_patience_s=limits.dead_s), **rest)

    patch.setattr(Silence, "__init__", impatient)


def secrets_are_not_checked(patch: Patch) -> None:
    patch.setattr(Keeper, "check", lambda *_: None)


def any_floor_is_believed(patch: Patch) -> None:
    """And nobody asks why a record that was sent once is a duplicate."""
    secrets_are_not_checked(patch)
    only_floors(patch)
    use_twin(patch, twin.Rules(bound_floor=False))
    patch.setattr(Link, "_question", lambda *_: None)


def repeating(seed: int, plan: str) -> World:
    """Where half of all gradients are not sent, and the last one is taken again."""
    policy = BFASGD(c_fetch=0.0, c_push=1.0, deviation=1.0)
    return swarm.world(seed, plan, policy=policy)


def again_counts_twice(patch: Patch) -> None:
    use_twin(patch, twin.Rules(once_again=False))


def the_first_is_taken_again(patch: Patch) -> None:
    use_twin(patch, twin.Rules(keep_last=False))


def another_life_s_gradient_is_taken_again(patch: Patch) -> None:
    """What a shard keeps of a replica's former life stands for the first push of the next one.

    That asks for it, too: ours sends its first gradient whole.
    """
    use_twin(patch, twin.Rules(same_life=False))
    obey = Trainer._obey

    def from_the_first(self: Trainer, *entry: Any) -> None:
        obey(self, *entry)
        self._pushes_before = -1

    patch.setattr(Trainer, "_obey", from_the_first)


def no_gradient_is_divided(patch: Patch) -> None:
    patch.setattr(scale, "by_staleness", lambda power: scale.AS_IT_IS)


def the_base_is_that_of_the_push_before(patch: Patch) -> None:
    """Records name the version that their replica's last gradient was computed from."""
    encode, named = Encoder.encode, dict[Encoder, list[Any]]()

    def late(self: Encoder, *what: Any, push: int, base: Any, **named_so: Any) -> Any:
        last = named.setdefault(self, [(push, base)])
        if last[-1][0] != push:
            last.append((push, base))
        return encode(self, *what, push=push, base=last[-2:][0][1], **named_so)

    patch.setattr(Encoder, "encode", late)


def the_base_moves_on(patch: Patch) -> None:
    """It is what has been fetched by the time of the push, and not what was read."""

    def base(self: Fetcher) -> Base:
        rounds = tuple(link.known.round for link in self._links)
        return Base(self.versions, rounds, self.clock)

    patch.setattr(Fetcher, "base", base)


def finite_lies_are_applied(patch: Patch) -> None:
    use_twin(patch, twin.Rules(norm=False))
    patch.setattr(hostile.play, "__kwdefaults__", {"acts": (hostile.lie,)})


def only_floors(patch: Patch) -> None:
    """The hostile peer leaves nobody, cuts nobody and fences nobody off: it would be noticed."""
    patch.setattr(hostile.play, "__kwdefaults__", {"acts": (hostile.settle_for_another,)})
    patch.setattr(hostile.Peer, "lives", property(lambda self: (self.victim.incarnation,)))


def a_round_closes_early(patch: Patch) -> None:
    """It does not wait for the last replica that is missing."""
    missing = EveryLive._missing
    patch.setattr(EveryLive, "_missing", lambda self, view: missing(self, view)[1:])


def the_dead_are_waited_for(patch: Patch) -> None:
    heard = Clocks.heard

    def all_of_them(self: Clocks, live: Any) -> None:
        heard(self, sorted({*live, *self.live}))

    patch.setattr(Clocks, "heard", all_of_them)


def waits_have_no_end(patch: Patch) -> None:
    """An answer that was held is sent, or its connection is gone, and it is counted on."""
    patch.setattr(Rounds, "let_go", lambda *_: None)


def waits_count_twice_over_a_reconnect(patch: Patch) -> None:
    """Another connection goes on with a wait from where the last one began it."""
    held, begun = Waits.held, dict[tuple[Waits, int], Any]()

    def again(self: Waits, owner: object, replica: int, *what: Any) -> None:
        is_new = replica not in self._open
        held(self, owner, replica, *what)
        if is_new:
            one, last = self._open[replica], begun.get((self, replica))
            if last is not None and last.owner is not owner:
                one.told_at = last.since
            begun[self, replica] = one

    patch.setattr(Waits, "held", again)


def the_idle_are_waited_for(patch: Patch) -> None:
    patch.setattr(Membership, "set_idle", lambda *_: None)


def any_order_will_do(patch: Patch) -> None:
    announce = EveryLive.announce

    def unordered(self: Any, push: PushInfo, view: Any) -> Decision:
        self._ordered = False
        return announce(self, push, view)

    patch.setattr(EveryLive, "announce", unordered)


def late_gradients_count_for_their_replica(patch: Patch) -> None:
    arrived = EveryLive.arrived

    def at_any_time(self: Any, push: PushInfo) -> None:
        arrived(self, push._replace(round=self.round))

    patch.setattr(EveryLive, "arrived", at_any_time)


def a_round_counts_twice(patch: Patch) -> None:
    """What was accumulated stays, and is in the next round, too."""
    close = Rounds._close

    def twice(self: Rounds) -> bool:
        self._rule.mean = False
        store, size = self._store, self._store.fragment_len
        sums = {}
        for place in range(store.fragments):
            fragment = store.first_fragment + place
            if store.accumulated(fragment) is not None:
                values = np.zeros(min(store.len - place * size, size), np.float32)
                store.read_accumulated(fragment, values)
                sums[fragment] = values
        is_closed = close(self)
        for fragment, values in sums.items():
            if is_closed:
                store.apply(fragment, values, 1)
        return is_closed

    patch.setattr(Rounds, "_close", twice)


def the_last_round_stays_open(patch: Patch) -> None:
    async def not_at_all(self: Rounds) -> None: ...

    patch.setattr(Rounds, "finish", not_at_all)


def nobody_waits_for_the_round(patch: Patch) -> None:
    patch.setattr(Rounds, "waits_for", lambda *_, **__: None)


def nobody_is_asked_again(patch: Patch) -> None:
    """What was turned down stays where it is."""
    patch.setattr(stream.PushHandler, "may_come_now", lambda self: False)


def what_a_codec_leaves_is_dropped(patch: Patch) -> None:
    """Quantised, and no more."""
    encode = Encoder.encode

    def forgetful(self: Encoder, *arguments: Any, **named: Any) -> Any:
        encoded = encode(self, *arguments, **named)
        if self.residual is not None:
            self.residual[:] = 0
        return encoded

    patch.setattr(Encoder, "encode", forgetful)


def what_was_sent_stays_in_the_residual(patch: Patch) -> None:
    """It goes again with the next push."""
    encode = Encoder.encode

    def repeating(self: Encoder, *arguments: Any, **named: Any) -> Any:
        before = None if self.residual is None else self.residual.copy()
        encoded = encode(self, *arguments, **named)
        if self.residual is not None:
            self.residual[:] = before
        return encoded

    patch.setattr(Encoder, "encode", repeating)


def what_is_left_out_is_waited_for(patch: Patch) -> None:
    begin = Portion.__init__

    def __init__(self: Portion, *arguments: Any) -> None:
        begin(self, *arguments)
        self.open = self.count

    patch.setattr(Portion, "__init__", __init__)


def what_a_shard_never_heard_of_is_called_settled(patch: Patch) -> None:
    """Of pushes that have nothing for it, too."""

    def first_open(self: Link) -> int:
        return self.queue[0].number if self.queue else self._answered + 1

    patch.setattr(Link, "first_open", property(first_open))


def stroms(seed: int, plan: str) -> World:
    """A world in which little of a gradient is said at once."""
    return swarm.world(seed, plan, policy=swarm.DRAWN["strom"](random.Random(seed)))


def users_own(seed: int, plan: str) -> World:
    """A world of the sample oracle with a policy that nobody here knows."""
    return swarm.counted(seed, plan, policy=EveryFew(count=7, staleness_power=0.0))


def ordered(seed: int, plan: str) -> World:
    """A world whose rounds add in the order of ids."""
    return swarm.world(seed, plan, policy=HardSync(combine="sum", ordered=True))


def in_long_blocks(seed: int, plan: str) -> World:
    """A world of the sample oracle whose blocks end for want of work, too."""
    return swarm.counted(seed, plan, policy=ModelAveraging(every=7, combine="sum"))


def a_delta_is_pushed_again(patch: Patch) -> None:
    """The next one is counted from the same base."""

    def carried(self: LocalCopy) -> None:
        assert self._anchor is not None
        np.add(self._anchor, self.flat, out=self._anchor)

    patch.setattr(LocalCopy, "carried", carried)


def a_fetch_ends_a_block(patch: Patch) -> None:
    """What lands replaces the copy, with what it has gained that no push carries."""
    land = LocalCopy.land

    def replace(self: LocalCopy, *fetched: Any) -> None:
        self._is_moved = False
        land(self, *fetched)

    patch.setattr(LocalCopy, "land", replace)


def a_block_begins_without_its_round(patch: Patch) -> None:
    """Behind a flush the replica trains on with what it has."""
    flush = Trainer.flush

    def forgets(self: Trainer) -> Any:
        yield from flush(self)
        self._rejoins = None

    patch.setattr(Trainer, "flush", forgets)


def a_block_s_units_count_at_once(patch: Patch) -> None:
    """A unit is reported as soon as it is finished, be its delta pushed or not."""
    train = Trainer._train

    def early(self: Trainer, *step: Any) -> Any:
        push = yield from train(self, *step)
        if self.unit is not None and push is None:
            self.unit.last_push = 0
        return push

    patch.setattr(Trainer, "_train", early)


def sums_are_made_again_whole(patch: Patch) -> None:
    """A gradient that a former sum has brought to some fragments is given to all of them again."""
    joins = Gradient.joins

    def again(self: Gradient, number: int, since: int, versions: Any) -> Any:
        joins(self, number, since, versions)
        self.missing = np.ones(len(versions), np.bool_)
        return "give"

    patch.setattr(Gradient, "joins", again)


def what_is_in_doubt_goes_on_under_its_lease(patch: Patch) -> None:
    """A unit whose gradients may have been applied is offered again as if they had not."""
    settled = Leases._settled
    patch.setattr(Leases, "_settled", lambda self: (*settled(self)[:2], []))


def old_groups_push_on(patch: Patch) -> None:
    """A shard takes sums of whatever group, for whatever version."""
    patch.setattr(Rounds, "decide", lambda self, push: Apply())
    patch.setattr(stream.PushHandler, "check_group", lambda self: None)


def old_groups_get_no_answer(patch: Patch) -> None:
    """What was applied before its group was replaced ends the connection, each time it comes."""
    admit = Shard.admit

    def anew(self: Shard, frame: _core.Frame) -> Admitted | Refused:
        answer = admit(self, frame)
        return answer._replace(is_done=False) if isinstance(answer, Admitted) else answer

    patch.setattr(Shard, "admit", anew)


def reduced_by_post(seed: int, plan: str) -> World:
    """Groups whose sums reach the shards by POST: an answer that is late is lost for good."""
    made = TREE(seed, plan)
    made.settings = dataclasses.replace(made.settings, proxied=1.0)
    return made


def a_childs_sum_is_forgotten(patch: Patch) -> None:
    """Waited for, and not added."""
    add = reducing.Member._add
    patch.setattr(
        reducing.Member, "_add", lambda self, own, fragment, _: add(self, own, fragment, ())
    )


def one_of_a_ring_pushes_all_shares(patch: Patch) -> None:
    """Not its own alone: of the others it has what had come around until it."""
    patch.setattr(Place, "own", property(lambda self: self.shares))


def parameters_do_not_go_around(patch: Patch) -> None:
    """Each of a ring has those of its own share, and goes on with older ones of all others."""

    async def none(self: reducing.Member, number: int, place: Place, words: str) -> str:
        return words

    patch.setattr(reducing.Member, "_give_down", none)


def a_share_is_taken_for_all(patch: Patch) -> None:
    """Who has fetched its own share believes that it has all of the others', too."""
    done = Link.fetch_done

    def has_all(self: Link, age: frames.Age) -> None:
        self._fetching.stop = 0
        done(self, age)

    patch.setattr(Link, "fetch_done", has_all)


def newer_maps_are_ignored(patch: Patch) -> None:
    """A replica goes on where it began, whatever a shard map says."""
    patch.setattr(Session, "reroute", lambda self, shard_map: None)
    patch.setattr(Link, "reroute", lambda self, entry: None)


def who_gives_goes_on(patch: Patch) -> None:
    """The old process of a shard takes and acknowledges pushes while it gives, and afterwards."""
    patch.setattr(Shard, "give", lambda self: self._state.become("giving", "it"))
    patch.setattr(Shard, "check_serving", lambda self: None)


def epochs_are_not_checked(patch: Patch) -> None:
    """A process that has given its shard away serves whoever still asks it."""
    patch.setattr(Shard, "check_epoch", lambda self, epoch: None)
    patch.setattr(Shard, "check_serving", lambda self: None)


def windows_stay_behind(patch: Patch) -> None:
    """A shard moves without what it knows of who has had what applied."""
    patch.setattr(TakingOver, "_adopt", lambda self, contents, state: None)


def rounds_stay_behind(patch: Patch) -> None:
    """A shard moves without its policy's state."""
    patch.setattr(Rounds, "load", lambda self, state: None)


def planes_stay_behind(patch: Patch) -> None:
    """A shard moves without its parameters."""

    async def go_on(self: Filling, *where: Any) -> None:
        self.loaded = self._store.len

    begin = TakingOver.__init__

    def __init__(self: TakingOver, *what: Any) -> None:
        begin(self, *what)
        for plane in self._planes:
            plane.go_on = functools.partial(go_on, plane)  # type: ignore[method-assign]

    patch.setattr(TakingOver, "__init__", __init__)


def it_serves_when_it_has_everything(patch: Patch) -> None:
    """The new process does not wait until the coordinator says that the place is its own."""
    become = Shard.become

    def prepared(self: Shard, state: Any) -> None:
        become(self, state)
        if state == "prepared":
            self.serve(9)

    patch.setattr(Shard, "become", prepared)


def within_slack(seed: int, plan: str) -> World:
    """A world of stale synchronous replicas that take a step of their own."""
    reads: Literal["lazy", "eager"] = "eager" if seed % 2 else "lazy"
    return swarm.world(seed, plan, policy=SSP(slack=seed % 3, reads=reads, in_flight=4))


def a_clock_counts_when_announced(patch: Patch) -> None:
    """Before the records of its push are there."""
    admit = Shard.admit

    def hasty(self: Shard, frame: Any) -> Any:
        self.rounds.finished(frame.replica, frames.push_notice(frame).clock)
        return admit(self, frame)

    patch.setattr(Shard, "admit", hasty)


def nobody_waits_for_the_slowest(patch: Patch) -> None:
    patch.setattr(Clocks, "behind", lambda self, clock: ())


def own_steps_are_forgotten(patch: Patch) -> None:
    """What a replica stepped while a fetch was on its way is not in its copy when that lands."""
    land = LocalCopy.land

    def forgetful(self: LocalCopy, values: Any, base: Any) -> None:
        self.asked()
        land(self, values, base)

    patch.setattr(LocalCopy, "land", forgetful)


def own_steps_are_made_twice(patch: Patch) -> None:
    """By the shard, and by the copy when a fetch lands that brought them."""
    patch.setattr(LocalCopy, "asked", lambda self: None)


def pushes_overtake_a_fetch(patch: Patch) -> None:
    """What was pushed while a fetch was on its way may be in it."""
    fetch = Link.fetch
    patch.setattr(Link, "fetch", lambda self, notice, **_: fetch(self, notice))


def softly(seed: int, plan: str) -> World:
    """A world of rounds of one n-th of the replicas."""
    return swarm.world(seed, plan, policy=Softsync(n=1 + seed % 2, combine="sum"))


def a_share_is_one_short(patch: Patch) -> None:
    due = Share.due

    def early(self: Share, view: Any, now: float) -> Any:
        if self._here:
            view = dataclasses.replace(view, live=view.live[1:])
        return due(self, view, now)

    patch.setattr(Share, "due", early)


def a_share_waits_for_one_more(patch: Patch) -> None:
    due = Share.due

    def late(self: Share, view: Any, now: float) -> Any:
        return due(self, dataclasses.replace(view, live=(*view.live, 98, 99)), now)

    patch.setattr(Share, "due", late)


def a_gate_holds_nothing(patch: Patch) -> None:
    """What is acknowledged need not be durable."""
    always = property(lambda self: EVERY_LSN, lambda self, lsn: None)
    patch.setattr(AckGate, "durable_lsn", always, raising=False)


def a_base_is_taken_for_durable(patch: Patch) -> None:
    """A process serves a shard before its own journal has what came from the other one."""

    async def reached(self: AckGate, lsn: int) -> None: ...

    patch.setattr(AckGate, "reached", reached)


def what_is_open_at_a_switch_is_dropped(patch: Patch) -> None:
    close = Rounds._close

    def dropped(self: Rounds) -> bool:
        if self._next_ruling is not None:
            for place in range(self._store.fragments):
                fragment = self._store.first_fragment + place
                self._store.close_round(fragment, self.round, factor=0.0)
            self._rule.closed()
        return close(self)

    patch.setattr(Rounds, "_close", dropped)


def what_is_accrued_is_dropped_at_a_switch(patch: Patch) -> None:
    go_over = Trainer._go_over

    def forgetful(self: Trainer) -> Any:
        if self.session.coordination.policy.version > self.ruling.version:
            self.accrual.take()
        yield from go_over(self)

    patch.setattr(Trainer, "_go_over", forgetful)


def replicas_stay_as_they_are(patch: Patch) -> None:
    patch.setattr(Trainer, "_go_over", lambda self: iter(()))


MUTATIONS: Final = (
    Mutation("acknowledge before applying", ("calm", "kill"), ack_before_apply, ("lost",)),
    Mutation("no dedupe", ("reset",), no_dedupe, ("twice", "never goes back")),
    Mutation("no incarnation check", ("zombie",), no_fence, ("fenced", "never goes back")),
    Mutation("no resend", ("reset",), no_resend, ("ends well",), first=9),
    Mutation("resend under new numbers", ("reset",), resend_under_new_numbers, ("twice",)),
    Mutation("a broken connection settles", ("reset",), lost_settlement, ("lost",)),
    Mutation("no window of pushes", ("clog", "slow"), no_push_window, ("window",)),
    Mutation("a unit is counted twice", ("reset",), unit_counted_twice, ("ledger", "once"),
             first=26),
    Mutation("leases are not fenced", ("zombie",), lease_not_fenced, ("once",)),
    Mutation("streams never pause", ("calm",), streams_never_pause, ("stops when",)),
    Mutation("reserved bytes are not kept", ("reset",), nothing_reserved, ("budget",)),
    Mutation("a fetch goes back", ("calm",), fetch_goes_back, ("never goes back", "lacks")),
    Mutation("a cut fetch claims its end", ("reset", "swarm"), fetch_claims_its_end, ("lacks",)),
    Mutation("a unit before its pushes", ("calm", "slow"), unit_before_its_pushes, ("once",)),
    Mutation("accrued work counts", ("kill",), accrued_work_counts, ("never applied",),
             swarm.counted),
    Mutation("books stay open", ("calm",), books_stay_open, ("never applied",), stopped),
    Mutation("a disk's trouble is hidden", ("disk",), trouble_is_hidden, ("run folder",)),
    Mutation("silence is death", ("pause",), silence_is_death, ("ends well",), first=13),
    Mutation("silent connections stay", ("forget",), silent_connections_are_kept, ("ends well",)),
    Mutation("secrets are not checked", ("hostile",), secrets_are_not_checked, ("ends well",),
             first=27),
    Mutation("any floor is believed", ("hostile",), any_floor_is_believed, ("lost",)),
    Mutation("finite lies are applied", ("hostile",), finite_lies_are_applied, ("invented",)),
    Mutation("again counts twice", ("reset",), again_counts_twice, ("twice",), repeating),
    Mutation("the first is taken again", ("calm",), the_first_is_taken_again,
             ("lost", "invented"), repeating),
    Mutation("another life's is taken again", ("kill", "zombie"),
             another_life_s_gradient_is_taken_again, ("twice", "invented"), repeating),
    Mutation("no gradient is divided", ("calm",), no_gradient_is_divided, ("is scaled by",),
             journals.divided),
    Mutation("the base is the push before's", ("calm",), the_base_is_that_of_the_push_before,
             ("is of version",), journals.divided),
    Mutation("the base moves on", ("calm",), the_base_moves_on, ("and its copy is not",),
             journals.divided),
    Mutation("newer maps are ignored", ("moves",), newer_maps_are_ignored, ("ends well",)),
    Mutation("who gives goes on", ("moves",), who_gives_goes_on, ("lost",)),
    Mutation("epochs are not checked", ("moves",), epochs_are_not_checked, ("lost",)),
    Mutation("windows stay behind", ("moves",), windows_stay_behind, ("never goes back", "twice")),
    Mutation("rounds stay behind", ("moves",), rounds_stay_behind,
             ("closed without", "ends well", "twice"), swarm.synced),
    Mutation("planes stay behind", ("moves",), planes_stay_behind, ("lost",)),
    Mutation("it serves too early", ("moves",), it_serves_when_it_has_everything,
             ("one process", "ends well")),
    Mutation("events are not kept", ("calm",), events_are_not_kept, ("run folder",)),
    Mutation("a round closes early", ("calm",), a_round_closes_early, ("closed without",),
             swarm.synced),
    Mutation("the dead are waited for", ("kill",), the_dead_are_waited_for, ("ends well",),
             swarm.synced),
    Mutation("whoever is gone is waited for", ("kill",), the_dead_are_waited_for,
             ("that it is gone",), swarm.synced),
    Mutation("waits have no end", ("calm",), waits_have_no_end, ("no answer to it is held",),
             swarm.synced),
    Mutation("waits count twice", ("reset",), waits_count_twice_over_a_reconnect,
             ("and that has waited",), swarm.synced),
    Mutation("the idle are waited for", ("calm",), the_idle_are_waited_for, ("ends well",),
             swarm.synced),
    Mutation("any order will do", ("calm",), any_order_will_do, ("was added before",), ordered),
    Mutation("late gradients count", ("zombie", "swarm"), late_gradients_count_for_their_replica,
             ("closed without",), swarm.synced),
    Mutation("a round counts twice", ("calm",), a_round_counts_twice, ("twice", "more often"),
             swarm.synced),
    Mutation("the last round stays open", ("calm",), the_last_round_stays_open,
             ("never applied",), users_own),
    Mutation("nobody waits for the round", ("calm",), nobody_waits_for_the_round,
             ("pushed twice",), swarm.synced),
    Mutation("a delta is pushed again", ("calm",), a_delta_is_pushed_again,
             ("twice", "more often"), swarm.averaged),
    Mutation("a fetch ends a block", ("calm",), a_fetch_ends_a_block, ("never applied",),
             swarm.averaged),
    Mutation("a block begins without its round", ("kill",), a_block_begins_without_its_round,
             ("pushed twice",), in_long_blocks),
    Mutation("a block's units count at once", ("kill",), a_block_s_units_count_at_once,
             ("never applied",), swarm.averaged),
    Mutation("a share is one short", ("calm",), a_share_is_one_short, ("closed with",), softly),
    Mutation("a share waits for one more", ("calm",), a_share_waits_for_one_more, ("open with",),
             softly),
    Mutation("a clock counts when announced", ("calm", "slow"), a_clock_counts_when_announced,
             ("within the slack",), within_slack),
    Mutation("nobody waits for the slowest", ("calm",), nobody_waits_for_the_slowest,
             ("within the slack",), within_slack),
    Mutation("own steps are forgotten", ("calm",), own_steps_are_forgotten, ("lacks",),
             within_slack),
    Mutation("own steps are made twice", ("calm",), own_steps_are_made_twice, ("too much",),
             within_slack),
    Mutation("pushes overtake a fetch", ("clog", "slow"), pushes_overtake_a_fetch,
             ("lacks", "too much"), within_slack),
    Mutation("a residual is dropped", ("calm",), what_a_codec_leaves_is_dropped, ("keeps",)),
    Mutation("a residual is sent twice", ("calm",), what_was_sent_stays_in_the_residual,
             ("keeps",)),
    Mutation("what waits to be said is dropped", ("calm",), what_a_codec_leaves_is_dropped,
             ("keeps",), stroms),
    Mutation("what is said goes on waiting", ("calm",), what_was_sent_stays_in_the_residual,
             ("keeps", "invented"), stroms),
    Mutation("what is left out is waited for", ("calm",), what_is_left_out_is_waited_for,
             ("ends well",), swarm.sparse),
    Mutation("what it never heard of is settled", ("calm",),
             what_a_shard_never_heard_of_is_called_settled, ("ends well",), swarm.sparse, first=20),
    Mutation("a gate holds nothing", ("calm",), a_gate_holds_nothing,
             ("acknowledged is durable",), gates.late),
    Mutation("a base is taken for durable", ("moves",), a_base_is_taken_for_durable,
             ("acknowledged is durable",), gates.late),
    Mutation("sums are made again whole", ("kill", "swarm"), sums_are_made_again_whole,
             ("twice", "more often"), TREE),
    Mutation("old groups push on", ("moves",), old_groups_push_on,
             ("twice", "more often"), TREE, first=20),
    Mutation("old groups get no answer", ("asleep",), old_groups_get_no_answer,
             ("ends well",), reduced_by_post),
    Mutation("what is in doubt goes on", ("estranged", "swizzle"),
             what_is_in_doubt_goes_on_under_its_lease, ("more often",), TREE, first=12),
    Mutation("a child's sum is forgotten", ("calm",), a_childs_sum_is_forgotten,
             ("lost", "never applied"), TREE),
    Mutation("a sum begins anew at each of a ring", ("calm",), a_childs_sum_is_forgotten,
             ("lost", "never applied"), RING),
    Mutation("one of a ring pushes all shares", ("calm",), one_of_a_ring_pushes_all_shares,
             ("lost", "never applied"), RING),
    Mutation("parameters do not go around", ("calm",), parameters_do_not_go_around,
             ("lost", "never applied"), RING),
    Mutation("a share is taken for all", ("kill", "swarm"), a_share_is_taken_for_all,
             ("a fetch is as new",), RING),
    Mutation("the idle stay in groups", ("calm",), the_idle_are_waited_for, ("ends well",),
             TREE),
    Mutation("what is open at a switch is dropped", ("switch",),
             what_is_open_at_a_switch_is_dropped, ("lost",), first=8),
    Mutation("accrual is dropped at a switch", ("switch",),
             what_is_accrued_is_dropped_at_a_switch, ("never applied",), swarm.counted),
    Mutation("replicas stay as they are", ("switch",), replicas_stay_as_they_are,
             ("two more steps",)),
    Mutation("nobody is asked again", ("calm",), nobody_is_asked_again, ("ends well",), ordered,
             first=9),
)  # fmt: skip
