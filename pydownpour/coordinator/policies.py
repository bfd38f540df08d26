"""The job's policy as a versioned value: which it is, since when, why, and what comes next.

Only the coordinator makes a new version: by the phases that the job declares, or because somebody
asks. Shards and replicas are told with their joins and heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import msgspec

from pydownpour.codecs import Codec
from pydownpour.limits import DEFAULT, Limits
from pydownpour.policy import Policy, check, check_codec, check_together, from_wire
from pydownpour.policy.phases import (
    Declared,
    check_same_outer,
    check_same_reduction,
    phases_of,
)
from pydownpour.wire.messages import PolicyEntry, PolicyStatus


@final
class Policies:
    """The versions of one job's policy.

    Args:
        declared: By the job.
        limits: How many of them are kept.
        optimizer, codec: The job's: a policy that they do not suit is refused.

    Attributes:
        current: The newest.
        versions: All of them, oldest first, or the first and the last of many.
    """

    def __init__(
        self,
        declared: Declared,
        limits: Limits = DEFAULT,
        optimizer: Sequence[tuple[str, dict[str, float]]] = (),
        codec: Codec | None = None,
    ) -> None:
        self._codec = codec
        self._phases, self._limits, self._optimizer = phases_of(declared), limits, optimizer
        self._phase: int | None = 0
        """Of the schedule; None: somebody has ended that."""
        self.versions: list[PolicyStatus] = []
        self._begin(self._phases.policies[0], 1, 0, 0.0, "the job")

    def _begin(self, policy: Policy, version: int, samples: int, at_s: float, by: str) -> None:
        self.current = policy
        entry = PolicyEntry(version=version, settings=policy.to_wire())
        self.versions.append(PolicyStatus(entry=entry, at_s=round(at_s, 3), samples=samples, by=by))
        if len(self.versions) > self._limits.policies_told_max:
            del self.versions[1]

    @property
    def status(self) -> PolicyStatus:
        """The newest version, since when it is, who wanted it, and how long it is to last."""
        return msgspec.structs.replace(self.versions[-1], plan=self._plan_words())

    def _plan_words(self) -> str:
        count, phase = len(self._phases.policies), self._phase
        if count == 1:
            return ""
        if phase is None:
            return f"a command has ended the {count} phases that the job declares"
        until = f"{self._phases.until[phase]:,} samples" if phase + 1 < count else "the end"
        return f"phase {phase + 1} of the {count} that the job declares, until {until}"

    @property
    def entry(self) -> PolicyEntry:
        """As it travels."""
        return self.versions[-1].entry

    @property
    def classes(self) -> tuple[type[Policy], ...]:
        """Those that the job declares: processes that have the job file know them."""
        return self._phases.classes()

    def newer(self, version: int) -> PolicyEntry | None:
        """For who knows an older one."""
        return self.entry if version < self.entry.version else None

    def advance(self, samples: int, at_s: float) -> bool:
        """So many samples are completed: whether that begins another phase."""
        if self._phase is None or (phase := self._phases.at(samples)) <= self._phase:
            return False
        self._phase = phase
        policy = self._phases.policies[phase]
        if policy == self.current:
            return False
        by = f"phase {phase + 1} of {len(self._phases.policies)}"
        self._begin(policy, self.entry.version + 1, samples, at_s, by)
        return True

    def set(self, settings: Mapping[str, Any], samples: int, at_s: float, by: str) -> bool:
        """Somebody wants this policy from now on: whether it is another than the current one.

        It ends the schedule. Only classes that the job declares can be other than ours.

        Raises:
            ConfigError: no such policy, or what its class says of the settings; nothing changes.
        """
        policy = from_wire(settings, lambda: self.classes)
        check(policy)
        check_together(self._optimizer, policy)
        check_codec(self._codec, policy)
        check_same_reduction(policy, policy.reduction(), self.current.reduction())
        check_same_outer(policy, policy.outer(), self.current.outer())
        self._phase = None
        if policy == self.current:
            return False
        self._begin(policy, self.entry.version + 1, samples, at_s, by)
        return True

    def plan(self) -> list[dict[str, Any]]:
        """The phases that the job declares, if there are several, for the report."""
        if len(self._phases.policies) == 1:
            return []
        ends = (*self._phases.until, None)
        return [
            {"policy": policy.to_wire(), "until": until}
            for policy, until in zip(self._phases.policies, ends, strict=True)
        ]
