"""How far a job is: the loss curve, evaluations, samples a second."""

from __future__ import annotations

from collections import deque
from typing import final

from pydownpour import limits
from pydownpour.coordinator.tally import finite
from pydownpour.limits import DEFAULT, Limits
from pydownpour.wire.messages import EvaluationEntry


@final
class LossCurve:
    """A curve of at most ``points_max`` points, however long the job.

    Each point is the mean of ``every`` reported losses, weighted by their samples. When there are
    too many points, neighbours are averaged and ``every`` doubles, so the curve keeps its shape
    and the cost of a report stays constant.
    """

    def __init__(self, points_max: int = limits.LOSS_POINTS_MAX) -> None:
        if points_max < 2:
            raise ValueError(f"points_max={points_max} must be at least 2")
        self._points_max = points_max - points_max % 2
        self._every = 1
        self._closed: list[_Bucket] = []
        self._open = _Bucket()

    def add(self, at_s: float, samples_done: int, loss: float, weight: int) -> None:
        """Report the mean loss of ``weight`` samples, at a time and an amount of work.

        One that is not finite cannot be drawn; replicas count theirs.
        """
        value = finite(loss)
        if value is None:
            return
        self._open.add(at_s, samples_done, value, max(weight, 1))
        if self._open.count < self._every:
            return
        self._closed.append(self._open)
        self._open = _Bucket()
        if len(self._closed) >= self._points_max:
            pairs = zip(self._closed[::2], self._closed[1::2], strict=True)
            self._closed = [first.joined(second) for first, second in pairs]
            self._every *= 2

    @property
    def points(self) -> list[tuple[float, int, float]]:
        """(seconds, samples, mean loss), oldest first."""
        buckets = [*self._closed, self._open] if self._open.count else self._closed
        return [bucket.point for bucket in buckets]

    @property
    def last(self) -> float | None:
        """The newest point's loss."""
        points = self.points
        return points[-1][2] if points else None


@final
class _Bucket:
    """A weighted mean; its place on the curve is where its last loss was."""

    __slots__ = ("at_s", "count", "loss", "samples", "weight")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.samples = 0
        self.loss = 0.0
        self.weight = 0
        self.count = 0

    def add(self, at_s: float, samples: int, loss: float, weight: int) -> None:
        self.at_s, self.samples = at_s, samples
        self._mix(loss, weight)
        self.count += 1

    def _mix(self, loss: float, weight: int) -> None:
        """A mean of finite numbers is finite; their sum need not be."""
        total = self.weight + weight
        self.loss = self.loss * (self.weight / total) + loss * (weight / total)
        self.weight = total

    def joined(self, later: _Bucket) -> _Bucket:
        both = _Bucket()
        both.at_s, both.samples = later.at_s, later.samples
        both.loss, both.weight = self.loss, self.weight
        both._mix(later.loss, later.weight)
        both.count = self.count + later.count
        return both

    @property
    def point(self) -> tuple[float, int, float]:
        return self.at_s, self.samples, self.loss


@final
class Progress:
    """The curve, the evaluations, and the times between which the job trained.

    Args:
        limits: How many evaluations are kept.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self.curve = LossCurve()
        self.evaluations: deque[EvaluationEntry] = deque(maxlen=limits.evaluations_max)
        self._numbers = 0
        self.evaluation_errors: deque[str] = deque(maxlen=limits.evaluation_errors_max)
        self.running_since: float | None = None
        self.running_until: float | None = None

    def evaluated(self, entry: EvaluationEntry) -> None:
        """Keep an evaluation, and forget the oldest ones where they are too many numbers."""
        if len(self.evaluations) == self._limits.evaluations_max:
            self._numbers -= len(self.evaluations[0].metrics)
        self.evaluations.append(entry)
        self._numbers += len(entry.metrics)
        while self._numbers > self._limits.evaluation_numbers_max and len(self.evaluations) > 1:
            self._numbers -= len(self.evaluations.popleft().metrics)

    def begin(self, now: float) -> None:
        """The first replica got work."""
        if self.running_since is None:
            self.running_since = now

    def end(self, now: float) -> None:
        """No more work is given out."""
        if self.running_until is None:
            self.running_until = now

    def running_s(self, now: float) -> float:
        """Seconds between begin and end (or now)."""
        if self.running_since is None:
            return 0.0
        return (self.running_until if self.running_until is not None else now) - self.running_since

    def samples_per_s(self, samples: int, now: float) -> float:
        """The mean rate while the job trained."""
        seconds = self.running_s(now)
        return samples / seconds if seconds > 0 else 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """What the newest evaluation returned."""
        return dict(self.evaluations[-1].metrics) if self.evaluations else {}
