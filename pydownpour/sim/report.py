"""What a simulation tells: the job's report and, on top of it, what only a simulator can know.

The shape is that of a real run's ``report.json``; what a simulated process says of its memory is a
constant. On top of it come::

    seed, trace_hash           equal settings and code give equal hashes, on every machine
    failure                    why the run is no good, "" if it is
    user_errors                what the replica function raised, each the first time, with traceback
    violations                 what should have held and did not, in words
    virtual_s, events          how long the world lasted, and callbacks it took
    messages, messages_per_s   pieces of data delivered, and per second of wall time
    wall_s                     seconds it took us
    faults, faults_injected    the plan's name, and how many faults took place
    restarts                   processes that were started again
    settings                   everything else it was run with
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, final

from pydownpour.limits import DEFAULT
from pydownpour.sim.trace import line

if TYPE_CHECKING:
    from pydownpour.sim.trace import Event
    from pydownpour.sim.world.world import World


@final
class Stopped(KeyboardInterrupt):
    """Ctrl-C has ended a simulation.

    Attributes:
        report: What it had come to.
    """

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(report["failure"])
        self.report = report


def build_report(world: World) -> dict[str, Any]:
    """The report of a world that ran. A job that left none still has its name, state and reason."""
    settings = world.settings
    summary = world.summary()
    failed = {"state": "failed", "reason": summary["failure"]} if "state" not in summary else {}
    return {
        "job": world.job.name,
        **failed,
        **summary,
        "settings": {
            "shards": settings.shards,
            "replicas": settings.replicas,
            "timing_only": settings.timing_only,
            "link": dataclasses.asdict(settings.link),
            "own_links": {name: dataclasses.asdict(own) for name, own in settings.own_links},
            "compute": dataclasses.asdict(settings.compute),
            "limits": {
                name: value
                for name, value in dataclasses.asdict(settings.limits).items()
                if value != getattr(DEFAULT, name)
            },
            "events_max": settings.events_max,
            "virtual_s_max": settings.virtual_s_max,
        },
    }


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether everything held and the run ended as its fault plan demands."""
    return not report["failure"] and not report["violations"]


def verdict(report: Mapping[str, Any]) -> str:
    """Say ``ok``, or what went wrong first."""
    if report["failure"]:
        return str(report["failure"])
    if report["violations"]:
        more = len(report["violations"]) - 1
        return f"{report['violations'][0]}" + (f" (and {more} more)" if more else "")
    return "ok"


def first_difference(one: Sequence[Event], other: Sequence[Event]) -> str:
    """Where two traces part: the last event both have, and what each has next. "" if nowhere."""
    before = "(the beginning)"
    for number, (a, b) in enumerate(zip_longest(one, other), 1):
        if a != b:
            return "\n".join((
                f"the runs differ from event {number} on:",
                f"  both    {before}",
                f"  first   {line(*a) if a is not None else '(the end)'}",
                f"  second  {line(*b) if b is not None else '(the end)'}",
            ))  # fmt: skip
        before = line(*a)
    return ""
