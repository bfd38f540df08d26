"""One seed, one small world of the oracle's: its shape, links and limits are drawn, too.

A fault that needs two fragments, a slow link or a full buffer is never found in a world that has
none of them. So each seed draws how many replicas and shards there are, how the job pushes and
fetches, what the network is like, and shrinks some limits until small parameters meet them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from pydownpour.codecs import Int8, Threshold
from pydownpour.limits import DEFAULT, KIB
from pydownpour.policy import Policy
from pydownpour.policy.bfasgd import BFASGD
from pydownpour.policy.block_momentum import BlockMomentum
from pydownpour.policy.diloco import DiLoCo
from pydownpour.policy.downpour import Downpour
from pydownpour.policy.hard_sync import HardSync
from pydownpour.policy.model_averaging import ModelAveraging
from pydownpour.policy.softsync import Softsync
from pydownpour.policy.ssp import SSP
from pydownpour.policy.staleness_aware import StalenessAware
from pydownpour.policy.strom import Strom
from pydownpour.sim.checks.base import Check
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.checks.samples import SampleOracle
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import FaultPlan, fault_plan
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World

WORK_S: Final = 2.0
"""Virtual seconds the work of a world takes: most of a storm."""
LONG_WORK_S: Final = 1.5 * DEFAULT.lease_s
"""In some worlds of a drawn plan: long enough for a lease to run out while its holder is away."""
EVENTS_MAX: Final = 1_000_000
"""A hundred times what a world needs: more is a livelock."""
VIRTUAL_S_MAX: Final = 600.0
RARE_ASKS: Final = ("lease_retry_s", 0.5)
"""In every world: replicas that wait for work ask less often, or asking is most of what happens."""
HASTY: Final = (("shard_patience_s", 20.0),)
"""Where a shard dies in earnest: the wait for it shows in a fraction of the time, too."""
SMALL_LIMITS: Final = (
    ("fragment_size", KIB),
    ("ack_every_fragments", 2),
    ("write_batch_size", KIB),
    ("write_high_water", 2 * KIB),
    ("ack_timeout_s", 3.0),
)
"""Several records a push, several acknowledgements and writes for each; connections that are given
up while a fault lasts, and not long after it."""
CODEC_SHARES: Final[tuple[tuple[float, Int8 | Threshold], ...]] = (
    (0.3, Int8(block=16)),
    (0.5, Threshold(tau=1.0)),
)
"""Of the worlds in which each push is of one gradient, up to where they have which codec."""
SHORT_TURNS: Final[dict[str, Any]] = {"turn_events_max": 3, "stream_events_max": 1}
"""A round is closed in several turns of a shard's loop, and much happens between them."""
SHORT_TURNS_SHARE: Final = 0.3
LANDINGS: Final[tuple[Literal["replace", "keep"], ...]] = ("replace", "keep")
EARLY_BACKUPS: Final[dict[str, Any]] = {"backup_min_s": 0.3, "backup_blind_s": 2.0}
"""Units are lent twice while a fault lasts."""


def _downpour(rng: random.Random) -> Downpour:
    return Downpour(
        push_every=rng.choice((1, 1, 1, 2)),
        fetch_every=rng.randint(1, 3),
        overlap=rng.random() < 0.8,
        in_flight=rng.choice((1, 1, 2, 4)),
        local_rate=0.0,
    )


def _bfasgd(rng: random.Random) -> Policy:
    return BFASGD(
        c_fetch=rng.choice((0.0, 1.0, 4.0)),
        c_push=rng.choice((0.0, 0.5, 2.0)),
        deviation=1.0,
        overlap=rng.random() < 0.3,
    )


def _hard_sync(rng: random.Random) -> Policy:
    return HardSync(combine="sum", ordered=rng.random() < 0.4)


def _ssp(rng: random.Random) -> Policy:
    return SSP(
        slack=rng.choice((0, 1, 3, None)),
        reads=rng.choice(("lazy", "eager")),
        local_rate=rng.choice((0.0, None)),
        in_flight=rng.choice((1, 1, 4)),
    )


def _strom(rng: random.Random) -> Policy:
    return Strom(
        threshold=1.0,
        fetch_every=rng.randint(1, 3),
        in_flight=rng.choice((1, 2, 4)),
        local_rate=0.0,
    )


def _softsync(rng: random.Random) -> Policy:
    return Softsync(
        n=rng.randint(1, 4),
        replicas=rng.choice((None, None, 3)),
        combine="sum",
        overlap=rng.random() < 0.5,
    )


def _staleness_aware(rng: random.Random) -> Policy:
    return StalenessAware(
        n=rng.choice((None, 1, 2, 3)), power=0.0, combine="sum", overlap=rng.random() < 0.5
    )


def _block_momentum(rng: random.Random) -> Policy:
    return BlockMomentum(
        every=rng.choice((1, 2, 3, 7)),
        momentum=0.0,
        nesterov=rng.choice(("exact", "no", "cntk")),
        combine="sum",
        keeps_state=rng.random() < 0.5,
    )


def _diloco(rng: random.Random) -> Policy:
    return DiLoCo(every=rng.choice((2, 5)), rate=1.0, momentum=0.0, combine="sum")


def _model_averaging(rng: random.Random) -> Policy:
    return ModelAveraging(every=rng.choice((1, 2, 3, 7)), combine="sum")


DRAWN: Final[dict[str, Callable[[random.Random], Policy]]] = {
    "bfasgd": _bfasgd,
    "downpour": _downpour,
    "hardsync": _hard_sync,
    "softsync": _softsync,
    "ssp": _ssp,
    "strom": _strom,
    "staleness_aware": _staleness_aware,
    "blockmomentum": _block_momentum,
    "diloco": _diloco,
    "modelaveraging": _model_averaging,
}
"""One row for each policy that ships: settings, drawn, with which a world's parameters count.

The oracles count exactly. So rounds are summed, no gradient is scaled, and the copies stand still
between two fetches or move as the shards do, or as gradients add up; what a scale or a momentum
does to a record is tested apart.
"""


def of_policy(seed: int, name: str, policy: str, trace: Trace | None = None) -> tuple[World, World]:
    """Two worlds of a seed under a plan, one of each oracle's, with a policy's drawn settings."""
    settings = DRAWN[policy](random.Random(f"{seed}/{policy}"))
    return world(seed, name, trace, settings), counted(seed, name, trace, settings)


def world(
    seed: int,
    name: str,
    trace: Trace | None = None,
    policy: Policy | None = None,
    checks: Sequence[type[Check]] = (),
    codec: Int8 | Threshold | None = None,
) -> World:
    """The world of a seed under a plan, not yet run.

    ``policy``: another than the drawn one. ``checks``: more of them. ``codec``: another than the
    drawn one; each push is then of one gradient.
    """
    rng = random.Random(f"{seed}/shape")
    replicas, pushes = rng.randint(2, 4), rng.randint(20, 30)
    pushes *= steps_of_a_push(policy)
    faults = fault_plan(name)
    work_s = WORK_S
    if faults.is_drawn and rng.random() < 0.4:
        work_s = LONG_WORK_S
        faults = dataclasses.replace(faults, storm_s=LONG_WORK_S)
    unit, parameters = rng.randint(1, 4), rng.choice((512, 2048, 8192))
    drawn = _downpour(rng)
    others = _others(seed, faults, policy or drawn)
    # Drawn apart, so that it changes nothing else; each push of one gradient.
    if codec is not None:
        drawn = dataclasses.replace(drawn, push_every=1)
        others = tuple(one for one in others if _sends_each_step(one))
    elif policy is None and drawn.push_every == 1 and not others:
        place = random.Random(f"{seed}/codec").random()
        codec = next((codec for share, codec in CODEC_SHARES if place < share), None)
    oracle = Oracle(
        pushes=pushes,
        unit=unit,
        parameters=parameters,
        policy=policy or drawn,
        others=others,
        rng=random.Random(f"{seed}/fetches"),
        codec=codec,
    )
    settings = _settings(rng, seed, faults, replicas, work_s * replicas / pushes)
    settings = dataclasses.replace(settings, policies=(policy or drawn, *others))
    settings = _reaching_each_other(settings, policy)
    return World(oracle.job, settings, trace, oracle=oracle, checks=checks)


def steps_of_a_push(policy: Policy | None) -> int:
    """Where replicas train by themselves, those of a block; else a world would have few pushes."""
    return 1 if policy is None or policy.outer() is None else getattr(policy, "every", 1)


def _sends_each_step(policy: Policy) -> bool:
    """As the push oracle's books of a residual want it.

    Its pushes are of one gradient, none of which is dropped for an earlier one, and its copies hold
    nothing that a codec has not sent.
    """
    sends_each = getattr(policy, "push_every", 1) == 1 and not policy.shard().repeats
    return sends_each and policy.replica().local_rate == 0.0 and policy.outer() is None


def sparse(seed: int, name: str, trace: Trace | None = None) -> World:
    """As :func:`world`, with pushes that leave most fragments out, and some all of them."""
    return world(seed, name, trace, codec=Threshold(tau=1.0))


def counted(
    seed: int, name: str, trace: Trace | None = None, policy: Policy | None = None
) -> World:
    """As :func:`world`, with the sample oracle's job: what is recorded must have been applied."""
    rng = random.Random(f"{seed}/counted")
    replicas, batch = rng.randint(2, 4), rng.choice((2, 5))
    unit = batch * rng.randint(1, 3)
    samples, passes = rng.choice((60, 150, 300)), rng.randint(1, 2)
    drawn = Downpour(
        push_every=rng.choice((1, 2, 7, 1000)),
        fetch_every=rng.choice((1, 3, 1000)),
        overlap=rng.random() < 0.8,
        in_flight=rng.choice((1, 1, 2, 4)),
        local_rate=0.0,
    )
    oracle = SampleOracle(
        samples=samples,
        unit=unit,
        batch=batch,
        passes=passes,
        policy=policy or drawn,
        wire_dtype=_wire_dtype(rng.choice(("float32", "float16")), policy),
        backup=rng.choice((0.0, 1.0, 8.0)),
    )
    step_s = WORK_S * replicas * batch / (samples * passes)
    settings = _settings(rng, seed, fault_plan(name), replicas, step_s)
    policies = (policy or drawn, *_others(seed, settings.faults, policy or drawn))
    settings = dataclasses.replace(settings, policies=policies)
    settings = _reaching_each_other(settings, policy)
    if rng.random() < 0.6:
        early = dataclasses.replace(settings.limits, **EARLY_BACKUPS)
        settings = dataclasses.replace(settings, limits=early)
    return World(oracle.job, settings, trace, samples=oracle)


def synced(seed: int, name: str, trace: Trace | None = None) -> World:
    """One of those two, in synchronous rounds.

    Where replicas may leave, a first round that waits for two could wait for ever, as it should.
    """
    rng = random.Random(f"{seed}/synced")
    ordered, first = rng.random() < 0.4, rng.choice((1, 1, 2))
    may_leave = any(dose.fault == "leave" for dose in fault_plan(name).doses)
    policy = HardSync(combine="sum", ordered=ordered, replicas=1 if may_leave else first)
    return (world if rng.random() < 0.5 else counted)(seed, name, trace, policy)


def averaged(seed: int, name: str, trace: Trace | None = None) -> World:
    """One of those two, whose replicas train by themselves and meet in rounds."""
    rng = random.Random(f"{seed}/averaged")
    policy = ModelAveraging(every=rng.choice((2, 3, 7)), combine="sum")
    return (world if rng.random() < 0.5 else counted)(seed, name, trace, policy)


def _others(seed: int, faults: FaultPlan, first: Policy) -> tuple[Policy, ...]:
    """What a job is switched to, if its plan does that: exact sums, and copies of shards alone."""
    if not any(dose.fault == "switch" for dose in faults.doses):
        return ()
    rng = random.Random(f"{seed}/policies")
    accruing = Downpour(
        push_every=rng.choice((2, 3)),
        fetch_every=rng.choice((1, 2, 1000)),
        overlap=rng.random() < 0.7,
        in_flight=rng.choice((1, 4)),
        local_rate=0.0,
        land=rng.choice(LANDINGS),
    )
    drawn = [draw(rng) for draw in DRAWN.values()]
    return tuple(
        one
        for one in (accruing, *drawn)
        if one.codec() is None
        and not one.needs_deviation
        and one.reduction() == first.reduction()
        and one.outer() == first.outer()
    )


def reduced(
    seed: int, name: str, trace: Trace | None = None, how: Literal["tree", "ring", ""] = ""
) -> World:
    """One of those two, in rounds whose gradients replicas add up among themselves.

    ``how`` they do is drawn if it is not said.
    """
    rng = random.Random(f"{seed}/reduced")
    drawn: Literal["tree", "ring"] = random.Random(f"{seed}/how").choice(("tree", "ring"))
    may_leave = any(dose.fault == "leave" for dose in fault_plan(name).doses)
    first = 1 if may_leave else rng.choice((1, 1, 2))
    policy = HardSync(combine="sum", replicas=first, reduce=how or drawn)
    return (world if rng.random() < 0.5 else counted)(seed, name, trace, policy)


def _reaching_each_other(settings: Settings, policy: Policy | None) -> Settings:
    """Replicas that reduce among themselves have to pass Upgrade."""
    if policy is None or policy.reduction() is None:
        return settings
    return dataclasses.replace(settings, proxied=0.0, policies=(policy,))


def _wire_dtype(drawn: str, policy: Policy | None) -> str:
    """Those that reduce among themselves send float32."""
    return drawn if policy is None or policy.reduction() is None else "float32"


def _settings(
    rng: random.Random, seed: int, faults: FaultPlan, replicas: int, step_s: float
) -> Settings:
    """Shards, links, costs and limits of a world."""
    settings = Settings(
        seed=seed,
        shards=rng.randint(1, 2),
        replicas=replicas,
        faults=faults,
        link=LinkModel(
            latency_s=10 ** rng.uniform(-4, -1.5),
            jitter=rng.choice((0.1, 0.5, 0.9)),
            bytes_per_s=10 ** rng.uniform(5.3, 9),
            slices_max=rng.choice((1, 1, 4)),
        ),
        proxied=rng.choice((0.0, 0.0, 0.0, 0.5)),
        compute=ComputeModel(base_s=step_s, jitter=0.5),
        events_max=EVENTS_MAX,
        virtual_s_max=VIRTUAL_S_MAX,
    )
    own: dict[str, Any] = dict(
        (
            RARE_ASKS,
            *(small for small in SMALL_LIMITS if rng.random() < 0.6),
            *(HASTY if faults.is_doom else ()),
        )
    )
    if random.Random(f"{seed}/turns").random() < SHORT_TURNS_SHARE:  # apart: it changes no other
        own.update(SHORT_TURNS)
    return dataclasses.replace(settings, limits=dataclasses.replace(DEFAULT, **own))


def replay(seed: int, name: str) -> str:
    """The line that runs a world again."""
    return (
        f"DOWNPOUR_SEED={seed} DOWNPOUR_FAULTS={name} "
        "python -m pytest tests/simulation/test_seeds.py -k replay"
    )
