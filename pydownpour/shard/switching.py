"""One version of the job's policy at a shard: the rule that it makes, and where it came from.

A shard goes over to a newer version between two records, in this order::

    memory for sums, if the new rule combines and the old one did not
    what the open round has becomes one update, as at the end of a job; its number is used up
    the new rule goes on counting rounds where the old one ended
    whoever waits is asked again, by the new rule

A push that was announced before keeps what was decided for it, as far as its records go on: those
that were to be added to the round that was closed are turned down for now, are announced again, and
are the new rule's. So each record is applied or added once, under whichever rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from pydownpour.policy import ShardRule, UsersPolicies, from_wire
from pydownpour.wire.messages import PolicyEntry


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Ruling:
    """A policy at work.

    Attributes:
        entry: What the coordinator said.
        rule: The shard's half of it.
    """

    entry: PolicyEntry
    rule: ShardRule

    @classmethod
    def of(cls, entry: PolicyEntry, users: UsersPolicies | None = None) -> Ruling:
        """Make the rule, as it begins.

        Raises:
            ConfigError: this process cannot build the policy.
        """
        return cls(entry, from_wire(entry.settings, users).shard())

    def export(self) -> dict[str, Any]:
        """The policy and the rule's state, as JSON has it."""
        return {
            "version": self.entry.version,
            "policy": self.entry.settings,
            "rule": self.rule.export(),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any], users: UsersPolicies | None = None) -> Ruling:
        """Go on with what :meth:`export` gave.

        Raises:
            ConfigError: this process cannot build the policy.
        """
        entry = PolicyEntry(version=int(state["version"]), settings=dict(state["policy"]))
        ruling = cls.of(entry, users)
        ruling.rule.load(state["rule"])
        return ruling
