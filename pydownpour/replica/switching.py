"""One version of the job's policy at a replica: the rule, and what depends on it.

A replica goes over to a newer version between two steps, in this order::

    what it has accrued is pushed: its leases and its samples are the old rule's
    every push that is open has its answer: the shards decide, by the rule that they obey by then
    the new rule: how it steps, lands, and how many pushes may be open
    a fetch that replaces the copy, whatever it had gained by itself

Nobody waits here for something that only the old rule brings: a shard that obeys another version
than the replica holds no fetch for it, and turns no push down for longer than its own rule says.
"""

from __future__ import annotations

from typing import final

from pydownpour import limits
from pydownpour.limits import Limits
from pydownpour.optimizers import local_rate
from pydownpour.policy import UsersPolicies, from_wire
from pydownpour.wire.messages import Joined, PolicyEntry


@final
class Ruling:
    """A policy at work.

    Args:
        entry: What the coordinator said.
        joined: Of the job: its optimizer.
        push_size: Bytes of a push.
        own: Bound the pushes in flight.
        users: Gives the classes of the job's own policies that are known here.

    Attributes:
        version, name: Of the job's policy.
        rule: The replica's half.
        local_rate: Step of its own copy.
        in_flight_max: Pushes that may be open when it makes the next.
        leaves_out: Pushes leave out fragments of which a codec has nothing to say.

    Raises:
        ConfigError: this process cannot build the policy.
    """

    def __init__(
        self,
        entry: PolicyEntry,
        joined: Joined,
        push_size: int,
        own: Limits,
        users: UsersPolicies | None,
    ) -> None:
        self.version, self.name = entry.version, str(entry.settings.get("name"))
        policy = from_wire(entry.settings, users)
        self.rule = policy.replica()
        # A round waits for each replica's push, and divides by those that each fragment has. And
        # the last gradient is the last push's, where that is to be taken again: zeros included.
        shard = policy.shard()
        self.leaves_out = not (shard.combines or shard.repeats)
        rate = self.rule.local_rate
        self.local_rate = local_rate(joined.optimizer) if rate is None else rate
        fitting = own.pushes_in_flight_size_max // push_size
        self.in_flight_max = max(1, min(self.rule.in_flight, limits.PUSHES_IN_FLIGHT_MAX, fitting))
