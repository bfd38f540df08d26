"""The sample oracle: a job whose final parameters count how often each sample was applied.

Theory. Parameter i belongs to sample i; a minibatch's gradient is -1 at its samples and nothing
anywhere else, and plain SGD with lr = 1 adds exactly. So the parameters *are* the tally of what was
applied, however a policy accrues it, and each element stands between two books:

    units recorded as complete that hold the sample   <=   value   <=   leases given of such units

Where a policy lets shards take an earlier gradient again in place of one, the samples of both may
be off by that one: what was dropped counts as done.

Too little is work that was recorded and whose gradient is nowhere; too much is a gradient that was
applied twice. Where no unit was lent twice both books are equal: then each sample counts exactly
once for each recorded pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, limits
from pydownpour.job import Job, Work
from pydownpour.optimizers import SGD
from pydownpour.policy import Policy
from pydownpour.policy.downpour import Downpour
from pydownpour.replica.pushes import Push
from pydownpour.sim.checks.oracle import Life, Pushed
from pydownpour.wire.messages import Complete, CompleteAnswer, LeaseAnswer

NAMED_MAX: Final = 3
"""Wrong samples a violation names."""
LOOK_EVERY: Final = 5
"""Steps after which a replica that trains by itself fetches, whatever its policy says: what it has
gained must stay."""


@final
class SampleOracle:
    """Makes the job and keeps the books.

    Args:
        samples: In a pass; as many parameters.
        unit, batch, passes: How they are lent and stepped through.
        policy: When to push and fetch; rounds must be summed. A threshold that it brings must
            be 1.
        wire_dtype: What gradients travel as; small whole numbers are exact in all of them.
        backup: When a unit is lent twice, as :class:`~pydownpour.Work` says.
    """

    def __init__(
        self,
        *,
        samples: int = 240,
        unit: int = 10,
        batch: int = 5,
        passes: int = 2,
        policy: Policy | None = None,
        wire_dtype: str = "float32",
        backup: float = limits.BACKUP_FACTOR,
    ) -> None:
        policy = policy or Downpour(local_rate=0.0)
        self.batch = batch
        self._trains = policy.outer() is not None
        self._mark = -1.0 if policy.codec() is None else -1.0 - 2.0**-10
        """With a threshold of 1 a little more, so that 1 is sent of each."""
        self.recorded: NDArray[np.int64] = np.zeros(samples, np.int64)
        """Per sample, completions that counted."""
        self.lent: NDArray[np.int64] = np.zeros(samples, np.int64)
        """Per sample, leases given."""
        self.dropped: NDArray[np.float64] = np.zeros(samples)
        """Per sample, how often another gradient may have been taken in place of its own."""
        self.repeated: NDArray[np.float64] = np.zeros(samples)
        """Per sample, how often its gradient may have been taken again."""
        self._leases: set[int] = set()
        self._open: list[Pushed] = []
        self.work = Work(samples, unit=unit, passes=passes, seed=1, backup=backup)
        self.job = Job(
            parameters={"counts": np.zeros(samples, np.float32)},
            optimizer=SGD(lr=1.0),
            policy=policy,
            data=self.work,
            name="samples",
            wire_dtype=wire_dtype if policy.codec() is None else "float32",
            # More than a replica that did all the work alone could push at once.
            max_norm=float(samples * passes),
        )
        self.job.replica(self.train)

    async def train(self, replica: Any) -> None:
        """What each replica runs."""
        async for unit in replica.work():
            for batch in unit.batches(self.batch):
                await replica.step(self.gradient(batch))
                if self._trains and replica.steps % LOOK_EVERY == 0:
                    await replica.fetch()

    def gradient(self, batch: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
        """-1 at the samples of a minibatch, as it is applied."""
        gradient = np.zeros(self.work.len, np.float32)
        gradient[batch] = self._mark
        return {"counts": gradient}

    def samples_of(self, pass_index: int, unit: int) -> NDArray[np.int64]:
        """The samples of a unit of pass ``pass_index``."""
        start = unit * self.work.unit
        return self.work.indices(pass_index, start, min(start + self.work.unit, self.work.len))

    def pushed(self, life: Life, push: Push) -> None:
        """A push is on its way; maybe in place of it an earlier one is taken again.

        Where a policy brings a codec none is.
        """
        if self.job.codec is not None:
            return
        for one in [one for one in self._open if one.push.open_portions == 0]:
            self._open.remove(one)
            one.settle()
        amounts = np.zeros(len(self.recorded), np.float32)
        length = life.trainer.session.joined.fragment_len
        dtype = {_core.DTYPE_F32: np.float32, _core.DTYPE_F16: np.float16}
        for frame in _core.scan_frames(push.encoded.sent()):
            start = frame.fragment * length
            values = np.frombuffer(frame.payload, dtype[frame.dtype])
            amounts[start : start + len(values)] = -values.astype(np.float32)
        one = Pushed(life, push, [], amounts, length)
        if push.again is not None:
            self.dropped += amounts
            self.repeated += one.repeated()
        self._open.append(one)

    def leased(self, answer: LeaseAnswer) -> None:
        """The coordinator lent units; a lease that is offered again is still the same."""
        for entry in answer.units:
            if entry.lease not in self._leases:
                self._leases.add(entry.lease)
                self.lent[self.samples_of(entry.pass_index, entry.unit)] += 1

    def completed(self, message: Complete, answer: CompleteAnswer) -> None:
        """The coordinator answered a report; a repeated one was booked before."""
        for unit, counted in zip(message.units, answer.counted, strict=True):
            if counted and unit.lease in self._leases:
                self.recorded[self.samples_of(unit.pass_index, unit.unit)] += 1
                self._leases.discard(unit.lease)

    def compare(self, values: NDArray[np.float32], start: int) -> Iterator[str]:
        """What is wrong with a shard's parameters (elements ``start`` on), in words."""
        stop = start + len(values)
        for wrong, words in (
            (
                values < self.recorded[start:stop] - self.dropped[start:stop],
                "recorded as complete and never applied",
            ),
            (
                values > self.lent[start:stop] + self.repeated[start:stop],
                "applied more often than it was lent",
            ),
            (values != np.floor(values), "applied by half"),
        ):
            places = np.flatnonzero(wrong)
            for i in places[:NAMED_MAX]:
                yield (
                    f"sample {start + i} was {words}: its parameter is {values[i]:g}, "
                    f"{self.recorded[start + i]} recorded, {self.lent[start + i]} lent "
                    f"({len(places)} such samples)"
                )
