"""Policies one after the other, as a job declares them: a schedule by completed samples.

    dp.Phases((dp.Downpour(warm_start=500), 5_000), (dp.HardSync(), 20_000), dp.Downpour())

is Downpour until 5,000 samples are completed, synchronous rounds until 20,000 are, and Downpour
from then on. The coordinator counts, and goes over to the next phase with the unit that completes
the phase before; shards and replicas go over when they hear of it (docs/policies.md, *Switching*).
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import Final, TypeAlias, final

from pydownpour import config, limits
from pydownpour.errors import ConfigError
from pydownpour.optimizers import Part
from pydownpour.policy.base import Policy, Reduction

PHASES_MAX: Final = 64
"""Phases of a job: the report lists them all."""


@final
@dataclasses.dataclass(frozen=True, init=False)
class Phases:
    """Policies one after the other.

    Args:
        phases: Each ``(policy, until)``: it ends when so many samples of the job are completed,
            counted from the job's begin; the last one, a policy by itself, ends with the job.

    Attributes:
        policies: In their order.
        until: Of each but the last, ascending.

    Raises:
        ConfigError: not such a list, or a phase that would end before it begins.

    Example:
        >>> from pydownpour.policy.downpour import Downpour
        >>> phases = Phases((Downpour(warm_start=100), 1000), Downpour(push_every=4))
        >>> phases.at(999), phases.at(1000)
        (0, 1)
    """

    policies: tuple[Policy, ...]
    until: tuple[int, ...]

    def __init__(self, *phases: tuple[Policy, int] | Policy) -> None:
        if not 1 <= len(phases) <= PHASES_MAX:
            raise ConfigError(f"Phases: {len(phases)} phases, must be 1 to {PHASES_MAX}")
        *ending, last = phases
        policies: list[Policy] = []
        until: list[int] = []
        for phase in ending:
            if not (isinstance(phase, tuple) and len(phase) == 2 and isinstance(phase[0], Policy)):
                raise ConfigError(
                    f"Phases: {phase!r} must be (policy, samples), for example "
                    "(dp.Downpour(), 10_000); only the last phase has no end"
                )
            policies.append(phase[0])
            least = until[-1] + 1 if until else 1
            until.append(config.whole("Phases: samples", phase[1], least=least))
        if not isinstance(last, Policy):
            raise ConfigError(
                f"Phases: the last phase, {last!r}, must be a policy by itself: it ends with the "
                "job"
            )
        if until and until[-1] > limits.COUNT_MAX:
            raise ConfigError(f"Phases: {until[-1]} samples are more than 2**53 (COUNT_MAX)")
        object.__setattr__(self, "policies", (*policies, last))
        object.__setattr__(self, "until", tuple(until))

    def at(self, samples: int) -> int:
        """The index of the phase when so many samples are completed."""
        return bisect.bisect_right(self.until, samples)

    @property
    def reduction(self) -> Reduction | None:
        """How replicas reduce among themselves, in all of its phases.

        Raises:
            ConfigError: it is not the same in all of them.
        """
        first, *others = [policy.reduction() for policy in self.policies]
        for policy, other in zip(self.policies[1:], others, strict=True):
            check_same_reduction(policy, other, first)
        return first

    @property
    def outer(self) -> Part | None:
        """What shards do with deltas, in all of its phases.

        Raises:
            ConfigError: it is not the same in all of them.
        """
        first, *others = [policy.outer() for policy in self.policies]
        for policy, other in zip(self.policies[1:], others, strict=True):
            check_same_outer(policy, other, first)
        return first

    def classes(self) -> tuple[type[Policy], ...]:
        """Those of its policies, each once.

        Raises:
            ConfigError: two of them have the same name.
        """
        found: dict[str, type[Policy]] = {}
        for policy in self.policies:
            kind = type(policy)
            if found.setdefault(policy.name, kind) is not kind:
                raise ConfigError(
                    f"two classes of policies have the name {policy.name!r}, and shards and "
                    "replicas know them by it; give one of them another"
                )
        return tuple(found.values())


def check_same_reduction(policy: Policy, one: Reduction | None, other: Reduction | None) -> None:
    """Where gradients are added up is decided once for a job.

    Raises:
        ConfigError: a policy has it otherwise.
    """
    if one != other:
        raise ConfigError(
            f"policy {policy.name}: replicas reduce among themselves from a job's beginning to its "
            "end, or never: where gradients are added up (reduce=...), and how, cannot change"
        )


def check_same_outer(policy: Policy, one: Part | None, other: Part | None) -> None:
    """What shards do with what comes is decided once for a job.

    Raises:
        ConfigError: a policy has it otherwise.
    """
    if one != other:
        words = [
            "the job's optimizer" if part is None else part.describe() for part in (one, other)
        ]
        raise ConfigError(
            f"policy {policy.name}: shards would have {words[0]}, and this job's have {words[1]} "
            "from its beginning to its end: what they do with what comes cannot change"
        )


Declared: TypeAlias = Policy | Phases
"""What a job may have as its policy."""


def phases_of(declared: Declared) -> Phases:
    """What a job declares, as phases: one policy is one phase."""
    return declared if isinstance(declared, Phases) else Phases(declared)
