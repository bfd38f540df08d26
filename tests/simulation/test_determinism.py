"""One seed, one trace: in every process, with every hash seed, cold and warm."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import aiohttp.connector
import pytest

from pydownpour.sim.trace import Trace
from pydownpour.sim.world import swarm

ROOT = Path(__file__).resolve().parents[2]
WORLDS = [("calm", 1), ("kill", 2), ("zombie", 3), ("churn", 4), ("swarm", 5), ("swarm", 6)]

PROGRAM = """
import sys
from pydownpour.sim.world import swarm
if sys.argv[1] == "warm":
    for seed in (11, 12):
        swarm.world(seed, "swarm").run()
for name, seed in {worlds!r}:
    print(name, seed, swarm.world(seed, name).run().trace.hash)
"""


def hashes(*, hash_seed: str, start: str) -> str:
    """The hashes of all worlds, from a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(worlds=WORLDS), start],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_hash_is_the_same_everywhere() -> None:
    here = "".join(
        f"{name} {seed} {swarm.world(seed, name).run().trace.hash}\n" for name, seed in WORLDS
    )
    assert hashes(hash_seed="0", start="cold") == here
    assert hashes(hash_seed="12345", start="warm") == here


@pytest.mark.parametrize("seed", range(20, 32))
def test_a_seed_run_twice_shows_no_differing_event(seed: int) -> None:
    first, again = Trace(keep=True), Trace(keep=True)
    swarm.world(seed, "swarm", first).run()
    swarm.world(seed, "swarm", again).run()
    assert first.kept is not None
    assert again.kept is not None
    differing = next(((a, b) for a, b in zip(first.kept, again.kept, strict=False) if a != b), None)
    assert differing is None
    assert first.hash == again.hash


def test_the_machine_s_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large world takes so long that whoever looks at that clock closes what is in use."""
    before = swarm.world(5, "swarm").run().trace.hash
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(aiohttp.connector, "monotonic", lambda: next(hours))
    assert swarm.world(5, "swarm").run().trace.hash == before


def test_another_seed_is_another_run() -> None:
    assert swarm.world(1, "calm").run().trace.hash != swarm.world(2, "calm").run().trace.hash
