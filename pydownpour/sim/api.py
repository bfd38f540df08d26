"""``dp.simulate``: a job on virtual time, from Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pydownpour.errors import ConfigError
from pydownpour.job import Job
from pydownpour.limits import DEFAULT, Limits
from pydownpour.sim.checks.base import Check
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import FaultPlan, fault_plan
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.report import Stopped, build_report
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World
from pydownpour.storage.files import LocalFiles
from pydownpour.storage.rundir import claim_run_folder

EVENTS_MAX = Settings.events_max
VIRTUAL_S_MAX = Settings.virtual_s_max


def simulate(
    job: Job,
    *,
    replicas: int = 4,
    shards: int = 2,
    seed: int = 0,
    faults: str | FaultPlan = "calm",
    links: LinkModel | Mapping[str, LinkModel] | None = None,
    compute: ComputeModel | None = None,
    timing_only: bool = False,
    trace: Trace | Callable[[str], None] | None = None,
    run_folder: str | os.PathLike[str] | None = None,
    limits: Limits = DEFAULT,
    events_max: int = EVENTS_MAX,
    virtual_s_max: float = VIRTUAL_S_MAX,
    checks: Sequence[type[Check]] = (),
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run a job in one process on virtual time, and return its report.

    The unchanged coordinator, shards and replica sessions run over an in-memory network; equal
    arguments give equal runs, event by event. The global generators of ``random`` and
    ``numpy.random`` are seeded for the run and restored behind it.

    Args:
        job: As for a real run; its replica function may be ``async def`` or a plain ``def``. All
            simulated replicas call the same function object in this process.
        replicas: How many.
        shards: How many.
        seed: Of everything random: latencies, compute times, faults, restarts.
        faults: A plan's name (see ``pydownpour sim --help``) or a plan of your own.
        links: Every host's network; or that of some: ``{"replica": far, "replica-3": slower}``
            names hosts (``coordinator``, ``shard-0``, ``replica-0``, ...) or the roles ``shard``
            and ``replica``, and the rest is as ``LinkModel()`` says.
        compute: What a step costs in virtual time.
        timing_only: Compute nothing: every unit is one step with a gradient of zeros, and nothing
            is evaluated. Timing, staleness and faults at any scale.
        trace: Called with one line per event; or a :class:`Trace`, to keep the events.
        run_folder: Write what the coordinator left on its simulated disk there: events,
            parameters, report.
        limits: What coordinator, shards and replicas wait for and keep at most.
        events_max: Callbacks the run may take; more is a failure.
        virtual_s_max: Virtual seconds it may last; more is a failure.
        checks: What must hold beyond the product's own table: classes derived from
            ``pydownpour.testing.Check``.
        say: Called at once with what the replica function raised and its traceback, the first
            time it raises so; the third time in a row ends the job, as in a real run.

    Returns:
        The report (``pydownpour.sim.report`` says what is in it). A run that failed has its reason
        in ``failure``, and what should have held and did not in ``violations``; neither raises.

    Raises:
        ConfigError: impossible settings, or a job without a replica function.
        KeyboardInterrupt: Ctrl-C; its ``report`` is what the run had come to.

    Example:
        >>> import numpy as np
        >>> from pydownpour import SGD, Job, Work
        >>> job = Job(parameters={"w": np.zeros(3)}, optimizer=SGD(lr=0.1), data=Work(6, unit=1))
        >>> simulate(job, replicas=2, shards=1, timing_only=True)["units"]
        6
    """
    settings = Settings(
        seed=seed,
        shards=shards,
        replicas=replicas,
        faults=fault_plan(faults) if isinstance(faults, str) else faults,
        link=links if isinstance(links, LinkModel) else LinkModel(),
        own_links=tuple(links.items()) if isinstance(links, Mapping) else (),
        compute=compute or ComputeModel(),
        timing_only=timing_only,
        limits=limits,
        events_max=events_max,
        virtual_s_max=virtual_s_max,
    )
    kept = trace if isinstance(trace, Trace) else Trace(trace)
    if timing_only:
        job = job.without_evaluation()  # zeros change no parameters
    else:
        _ = job.train  # without one it would fail in every replica, again and again
    if run_folder is not None:
        run_folder = os.path.abspath(run_folder)  # the job's functions may change the folder
        claim_run_folder(run_folder)
    world = World(job, settings, kept, checks=checks, say=say)
    try:
        with _seeded(seed):
            _run(world)
    except KeyboardInterrupt:
        raise Stopped(build_report(world)) from None
    if run_folder is not None:
        _keep(world, run_folder)
    return build_report(world)


def _run(world: World) -> None:
    """Run it here, or in a thread where this one runs an event loop already (a notebook)."""
    try:
        asyncio.get_running_loop()
        is_plain = False
    except RuntimeError:
        is_plain = True
    if is_plain:  # not in the handler above: its exception would stand in the user's tracebacks
        world.run()
        return
    failed: list[BaseException] = []

    def run() -> None:
        try:
            world.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="pydownpour-simulation", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's and numpy's global generators follow the seed meanwhile."""
    python, numpy = random.getstate(), np.random.get_state()
    chance = random.Random(f"{seed}/global")
    random.seed(chance.getrandbits(64))
    np.random.seed(chance.getrandbits(32))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _keep(world: World, run_folder: str | os.PathLike[str]) -> None:
    """Write the coordinator's files to a real folder."""
    disk = world.network.hosts["coordinator"].disk
    assert disk is not None
    try:
        for path, content in disk.files().items():
            name = os.path.basename(path)  # its run folder is flat, and so is what was elsewhere
            LocalFiles().replace(os.path.join(run_folder, name), [content])
    except OSError as error:
        raise ConfigError(f"cannot write the run folder {run_folder}: {error}") from error
