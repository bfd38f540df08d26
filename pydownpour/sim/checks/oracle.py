"""The index oracle: a job whose final parameters count every push.

Theory. Push k adds 1.0 at its own places and nothing anywhere else: at every element e with
``e % width == k % width``, so at least once in each record of each shard. Plain SGD with lr = 1
adds exactly (the sums are small integers). So the parameters of a shard *are* the list of records
it applied, and no history has to be searched: at each place stand

    as many as the replicas were told are applied   <=   value   <=   as many as were ever sent

and both bounds meet at a push whose answer is known. Too little is a lost acknowledged push, too
much is one applied twice or invented. A replica's copy must obey the upper bound, never fall, and
after a fetch it waited for hold everything that was acknowledged to anybody before it asked.

Where replicas train by themselves, they do with SGD of lr = 1, too: a delta is a sum of gradients.
Their copies may hold steps that no push carries yet, and so anything that was ever given.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.codecs import Int8, Threshold, compiled
from pydownpour.errors import ConfigError
from pydownpour.job import Job, Work
from pydownpour.optimizers import SGD
from pydownpour.policy import Policy
from pydownpour.policy.downpour import Downpour
from pydownpour.replica.pushes import Portion, Push

if TYPE_CHECKING:
    from pydownpour.replica.trainer import Trainer
    from pydownpour.shard.state import Shard
    from pydownpour.sim.machines.process import SimProcess

ANCHOR = 127.0
"""The largest code of int8: a block with it has the scale 1."""
NAMED_MAX = 3
"""Wrong elements a violation names."""
REDUCED_MAX = 16
"""Gradients in a sum that replicas make among themselves, in a world of the oracle's."""


@final
@dataclasses.dataclass(eq=False, slots=True)
class Life:
    """One replica process from its join to its end.

    Attributes:
        pushed: What it pushed and is not wholly answered, oldest first.
        residual: With a codec, what its pushes were given and do not say.
        kept: Of each fragment, what its shard took of the newest push that was sent whole.
        newest: The number of that push.
    """

    process: SimProcess
    replica: int
    incarnation: int
    trainer: Trainer
    pushed: list[Pushed] = dataclasses.field(default_factory=list)
    residual: Any = 0.0
    kept: dict[int, NDArray[np.float32]] = dataclasses.field(default_factory=dict)
    newest: dict[int, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.process.name} ({self.replica}.{self.incarnation})"


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """One place a push adds to, how much, and the record that carries it there."""

    element: int
    amount: float
    portion: Portion
    fragment: int
    again: bool = False
    """It adds so much if the record stands for the last one; else if it does not."""

    @property
    def is_settled(self) -> bool:
        """The replica was told that the record is applied, and this is what it adds."""
        return self.portion.is_settled(self.fragment) and self.is_meant

    @property
    def is_meant(self) -> bool:
        """This is what the record adds, as far as its replica knows."""
        return self.portion.is_again(self.fragment) == self.again

    @property
    def may_count(self) -> bool:
        """It was added, or may be yet."""
        return self.is_meant or not self.portion.is_settled(self.fragment)


@final
@dataclasses.dataclass(eq=False, slots=True)
class Pushed:
    """A push that was sent, and the places of the parameters that it adds to."""

    life: Life
    push: Push
    marks: list[Mark]
    amounts: NDArray[np.float32]
    fragment_len: int

    def __str__(self) -> str:
        return f"push {self.push.index} of {self.life}"

    def settle(self) -> None:
        """All of it is answered: what was sent whole is what its shards keep."""
        for portion in self.push.portions:
            for fragment in range(portion.first, portion.first + portion.count):
                newest = self.life.newest.get(fragment, 0)
                if not portion.is_again(fragment) and self.push.index > newest:
                    self.life.newest[fragment] = self.push.index
                    start = fragment * self.fragment_len
                    self.life.kept[fragment] = self.amounts[start : start + self.fragment_len]

    def repeated(self) -> NDArray[np.float32]:
        """What it adds where it stands for the last one."""
        found = np.zeros_like(self.amounts)
        for fragment, amounts in self.life.kept.items():
            start = fragment * self.fragment_len
            found[start : start + len(amounts)] = amounts
        return found


@final
class Oracle:
    """Makes the job, keeps the books, and compares.

    Args:
        pushes: Gradients in the job, if no unit is computed twice.
        unit: Gradients in a work unit.
        parameters: Elements.
        width: Pushes before places are used again.
        policy: When to push and fetch; its copies must stand still or hold their own steps once,
            and rounds must be summed, and deltas added as they are. One that is not ours pushes
            after each step.
        others: Policies that the job may go over to; the same of them.
        rng: When the job's function fetches and waits for it.
        codec: How pushes travel, if the policy does not say. Each must then be of one step.
    """

    def __init__(
        self,
        *,
        pushes: int,
        unit: int = 2,
        parameters: int = 1024,
        width: int = 256,
        policy: Policy | None = None,
        others: tuple[Policy, ...] = (),
        rng: random.Random | None = None,
        codec: Int8 | Threshold | None = None,
    ) -> None:
        policy = policy or Downpour(local_rate=0.0)
        policies = (policy, *others)
        _check_copies(policies)
        self._trains = policy.outer() is not None
        self._moves = any(one.replica().local_rate is None for one in policies)
        """A replica's copy holds its own gradient when the step ends."""
        self.width = width
        self.low: NDArray[np.float64] = np.zeros(parameters)
        """At each element, applications that replicas were told of."""
        self.sent: NDArray[np.float64] = np.zeros(parameters)
        """At each element, pushes that were ever sent."""
        self.acked = 0
        """Pushes wholly answered."""
        self.wrong: list[str] = []
        """What replicas saw that they should not."""
        self._is_visible = not any(one.shard().combines for one in policies)
        """What is acknowledged is in the parameters, not in a round that is open."""
        self._may_fall = (self._moves or self._trains) and not self._is_visible
        """While replicas and shards obey different policies, a copy may hold its own gradient that
        is in a shard's open round, and so not in what it fetches next. So does one that trains by
        itself, if its delta came too late for the round it was for."""
        self.given: NDArray[np.float64] = np.zeros(parameters)
        """At each element, gradients that were ever given to a replica."""
        self._rng = rng or random.Random(0)
        self._next = 0
        self._open: dict[Pushed, None] = {}
        self._by_element: dict[int, list[Pushed]] = {}
        self._fences: dict[tuple[int, int], int] = {}
        """Newest incarnation heard by (shard, replica)."""
        self._sums_outlive = policy.reduction() is not None
        """A sum may be pushed by others when a replica in it is dead, and has come back."""
        self._frozen: dict[int, tuple[float, Pushed]] = {}
        """Elements that must stay as they are, and whose incarnation is fenced."""
        accrued = max(map(_steps_of_a_push, policies))
        encodes = codec or policy.codec()
        self._codec = compiled(None if encodes is None else encodes.entry())
        self._mark = self._one
        marks = accrued * accrued * parameters / width
        if isinstance(encodes, Int8):
            self._block, self._mark = encodes.block, self._one_among_anchors
            marks = parameters / width * 4 + parameters / encodes.block * ANCHOR**2
        elif isinstance(encodes, Threshold):
            self._quantum, self._mark = encodes.tau, self._some_of_some
            marks = parameters / width * encodes.tau**2
        if policy.reduction() is not None:
            marks *= REDUCED_MAX**2  # one push is the sum of many
        self.job = Job(
            parameters={"marks": np.zeros(parameters, np.float32)},
            optimizer=SGD(lr=1.0),
            policy=policy,
            data=Work(pushes, unit=unit, shuffle=False),
            # Each push is just small enough, and nothing else is.
            max_norm=math.sqrt(marks),
            codec=codec,
            name="oracle",
        )
        self.job.replica(self.train)

    # -- the job -----------------------------------------------------------------------------------

    def gradient(self) -> dict[str, NDArray[np.float32]]:
        """The next push: -1 at its places; with a codec something that it sends as whole ones."""
        gradient = np.zeros(len(self.low), np.float32)
        self._mark(gradient, self._next % self.width)
        self._next += 1
        self.given -= gradient
        return {"marks": gradient}

    def _one(self, gradient: NDArray[np.float32], place: int) -> None:
        gradient[place :: self.width] = -1.0

    def _one_among_anchors(self, gradient: NDArray[np.float32], place: int) -> None:
        """For int8: each block has an anchor that makes its scale 1, and a mark is -1.5.

        It travels as -2, or -1 where the last one there left +0.5. So what is applied is still
        whole, and what is left is exact.
        """
        gradient[:: self._block] = -ANCHOR
        gradient[place + (place % self._block == 0) :: self.width] = -1.5

    def _some_of_some(self, gradient: NDArray[np.float32], place: int) -> None:
        """For a threshold: of its places a third is sent, and a third is not large enough.

        So most fragments are left out, and of some pushes there is nothing to say.
        """
        places = gradient[place :: self.width]
        places[self._next % 3 :: 3] = -1.5 * self._quantum
        places[(self._next + 1) % 3 :: 3] = -0.625 * self._quantum

    async def train(self, replica: Any) -> None:
        """What each replica runs."""
        marks = replica.parameters["marks"]
        before = marks.copy()
        async for unit in replica.work():
            for _ in unit.batches(1):
                gradient = self.gradient()
                await replica.step(gradient)
                own = gradient["marks"] if self._moves else 0.0
                self._look(replica, marks, before - own)
                if self._rng.random() < 0.1:
                    self.absorb()
                    acked = self.low.copy() if self._is_visible else before
                    await replica.fetch()
                    self._look(replica, marks, acked, "after a fetch it waited for")
                np.copyto(before, marks)

    def _look(
        self, replica: Any, marks: Any, least: Any, when: str = "that it had seen before"
    ) -> None:
        """A replica's copy against what it must hold at least and can hold at most."""
        least = np.zeros_like(marks) if self._may_fall else least
        most = self.given if self._trains else self.sent
        for wrong, words in ((marks < least, "lacks"), (marks > most, "holds too much")):
            places = np.flatnonzero(wrong)
            if len(places) and len(self.wrong) < NAMED_MAX:
                e = int(places[0])
                self.wrong.append(
                    f"replica {replica.id}.{replica.incarnation} {words} at {len(places)} elements "
                    f"({when if words == 'lacks' else 'of all ever sent'}): element {e} is "
                    f"{marks[e]:g}, must be {least[e]:g} to {most[e]:g}"
                )

    # -- the books ---------------------------------------------------------------------------------

    def pushed(self, life: Life, push: Push, portions: list[Portion]) -> None:
        """A push is on its way; ``portions`` are its records at each shard."""
        length = life.trainer.session.joined.fragment_len
        amounts = -self._received(push, length)
        one = Pushed(life, push, [], amounts, length)
        self._check_residual(life, push, amounts)
        self._book(one, amounts, portions, again=False)
        if push.again is not None:
            # All before it are answered, so what its shards keep is known.
            self.absorb()
            self._book(one, one.repeated(), portions, again=True)
        life.pushed.append(one)
        self._open[one] = None

    def _book(
        self, one: Pushed, amounts: NDArray[np.float32], portions: list[Portion], *, again: bool
    ) -> None:
        """Note what a push adds where, if it is sent whole, or if it stands for the last one."""
        life = one.life
        places = np.flatnonzero(amounts)
        self.sent[places] += amounts[places]
        for link, portion in zip(life.trainer.session.links, portions, strict=True):
            start, stop = link.entry.start, link.entry.start + link.entry.len
            is_late = self._fences.get((link.entry.index, life.replica), 0) > life.incarnation
            for e in map(int, places[(places >= start) & (places < stop)]):
                fragment = e // link.fragment_len
                one.marks.append(Mark(e, float(amounts[e]), portion, fragment, again))
                users = self._by_element.setdefault(e, [])
                users.append(one)
                if len(users) > 1:
                    self._frozen.pop(e, None)  # nobody could say whose change it is
                elif is_late and not self._sums_outlive:
                    self._frozen[e] = (0.0, one)

    def _received(self, push: Push, length: int) -> NDArray[np.float32]:
        """What a shard makes of a push's bytes, which are of float32 or a codec's."""
        codec, received = self._codec, np.zeros(len(self.low), np.float32)
        pieces = np.split(received, range(length, len(received), length))
        for frame in _core.scan_frames(push.encoded.sent()):
            if codec is None:
                pieces[frame.fragment][:] = np.frombuffer(frame.payload, np.float32)
            else:
                codec.decode(frame.payload, pieces[frame.fragment])
        return received

    def _check_residual(self, life: Life, push: Push, amounts: NDArray[np.float32]) -> None:
        """What a replica keeps is what it was given and has not sent, to the bit."""
        residual, gradient = life.trainer.encoder.residual, push.encoded.gradient
        if residual is None or gradient is None:
            return
        life.residual = life.residual + (gradient + amounts)
        if life.trainer.pushes == push.index and not np.array_equal(residual, life.residual):
            e = int(np.flatnonzero(residual != life.residual)[0])
            self.wrong.append(
                f"{life} keeps {residual[e]:g} at element {e} after push {push.index}, and was "
                f"given {life.residual[e]:g} more than it has sent"
            )

    def absorb(self) -> None:
        """Book what has been answered since."""
        for one in [one for one in self._open if not (one.push.open_portions or one.push.in_doubt)]:
            del self._open[one]
            one.life.pushed.remove(one)
            self.acked += 1
            if one.push.refused:
                self.wrong.append(f"{one} was refused: {one.push.reason}")
                continue
            one.settle()
            for mark in one.marks:
                if mark.is_meant:
                    self.low[mark.element] += mark.amount
                else:
                    self.sent[mark.element] -= mark.amount

    def fenced(self, shard: Shard, replica: int, incarnation: int) -> None:
        """A shard has heard a newer incarnation: what older ones left open there stays as it is."""
        self._fences[shard.assigned.index, replica] = incarnation
        start, stop = shard.assigned.start, shard.assigned.start + shard.assigned.len
        values = read(shard)
        for one in self._open:
            if one.life.replica != replica or one.life.incarnation >= incarnation:
                continue
            for mark in one.marks:
                e = mark.element
                alone = len(self._by_element[e]) == 1 and not self._sums_outlive
                if start <= e < stop and alone:
                    self._frozen.setdefault(e, (float(values[e - start]), one))

    # -- the comparison ----------------------------------------------------------------------------

    def compare(self, shard: Shard) -> Iterator[str]:
        """What is wrong with a shard's parameters, in words."""
        self.absorb()
        start, stop = shard.assigned.start, shard.assigned.start + shard.assigned.len
        values = read(shard)
        low, high = self.low.copy(), self.low.copy()
        for one in self._open:
            for mark in one.marks:
                high[mark.element] += mark.amount if mark.may_count else 0.0
                if mark.is_settled:
                    low[mark.element] += mark.amount
        low, high = low[start:stop], high[start:stop]
        for wrong, what in (
            (values < low, "an acknowledged push is lost"),
            (values > high, "a push was applied twice, or invented"),
            (values != np.floor(values), "half a push was applied"),
        ):
            for i in np.flatnonzero(wrong)[:NAMED_MAX]:
                who = ", ".join(str(one) for one in self._by_element.get(int(start + i), []))
                yield (
                    f"shard {shard.assigned.index}: {what}: element {start + i} is "
                    f"{values[i]:g}, must be {low[i]:g} to {high[i]:g} ({who or 'nobody pushed'})"
                )
        for e, (value, one) in self._frozen.items():
            if start <= e < stop and values[e - start] != value:
                yield (
                    f"shard {shard.assigned.index}: {one} was applied after its incarnation was "
                    f"fenced (element {e})"
                )


def _check_copies(policies: tuple[Policy, ...]) -> None:
    """Whether a replica's copy can be compared as a whole under each of them.

    Raises:
        ConfigError: it cannot.
    """
    for rule in (one.replica() for one in policies):
        if rule.local_rate != 0 and rule.land != "redo":
            raise ConfigError(
                "the oracle compares whole copies: they must stand still (local_rate=0), or "
                "hold each step of their own once (land='redo')"
            )


def _steps_of_a_push(policy: Policy) -> int:
    """At most; one that is not ours pushes after each."""
    return policy.push_every if isinstance(policy, Downpour) else getattr(policy, "every", 1)


def read(shard: Shard) -> NDArray[np.float32]:
    """A shard's parameters, straight from its store, as if its open round were applied."""
    values = np.empty(shard.assigned.len, np.float32)
    shard.store.read(values)
    if shard.store.accumulates:
        size = shard.assigned.fragment_len
        first = shard.store.first_fragment
        for place in range(shard.store.fragments):
            fragment = values[place * size : (place + 1) * size]
            added = np.empty_like(fragment)
            shard.store.read_accumulated(first + place, added)
            fragment -= added
    return values
