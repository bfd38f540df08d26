"""A real job by hand with the witness as its training loop, and what must hold while it suffers."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import safetensors.numpy

from pydownpour.limits import MIB
from tests.attack.hostile import Target
from tests.attack.witness import expected_row
from tests.chaos.jobs.journal import journal_path, read_notes
from tests.chaos.processes import PROGRAM, ROOT, ByHand, status, until

WITNESS: Final = ROOT / "tests" / "attack" / "witness.py"
TOKEN: Final = "a token for the siege, 0123456789abcdef"
FEW_DESCRIPTORS: Final = ("prlimit", "--nofile=1024:1024", *PROGRAM)
"""Most systems give a process so many; where there are more, an act would need more, too."""
GROWTH_MAX: Final = 64 * MIB
"""Bytes a role's memory may grow by under attack: what its limits say it may hold, and slack."""
OUTPUT_MAX: Final = 256 * 1024
"""Characters a role may say during a whole siege."""


class Siege:
    """A job under attack; a context manager.

    Args:
        folder: For everything.
        replicas: Honest ones.
        pace_s: Between two pushes of a replica.
    """

    def __init__(self, folder: Path, *, replicas: int = 2, pace_s: float = 0.005) -> None:
        self.folder, self.names = folder, [f"replica-{i}" for i in range(replicas)]
        self.job = ByHand(
            WITNESS,
            folder,
            program=FEW_DESCRIPTORS,
            env={"PYDOWNPOUR_TOKEN": TOKEN, "WITNESS_PACE_S": str(pace_s)},
        )
        self._rss: dict[int, int] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Siege:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.job)
            for _ in self.names:
                self.start_replica()
            self.until_everybody_pushes(20)
            self._rss = self.rss()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def start_replica(self, coordinator: str = "") -> None:
        """The next honest replica, which must be the job's next member."""
        command = self.job.replica(coordinator=coordinator)
        number = len(self.job.replicas)
        until(lambda: self.acked(number) > 0, f"the first push of replica {number}")
        self.names = [f"replica-{index}" for index in range(number)]
        self._rss[command.pid] = psutil.Process(command.pid).memory_info().rss

    def target(self, scale: int = 1) -> Target:
        """The job as a hostile peer sees it."""
        urls = tuple(shard["url"] for shard in self.status()["shards"])
        victims = tuple(range(1, len(self.job.replicas) + 1))
        return Target(self.job.url, urls, TOKEN, victims, scale)

    def status(self) -> dict[str, Any]:
        """What the coordinator says."""
        return status(self.job.url, TOKEN)

    def acked(self, replica: int) -> int:
        """Pushes that an honest replica knows to be acknowledged."""
        notes = read_notes(journal_path(self.folder, replica, 1))
        return max((int(words[1]) for words in notes if words[0] == "acked"), default=0)

    def until_everybody_pushes(self, more: int) -> None:
        """Every honest replica gets on."""
        wanted = {i + 1: self.acked(i + 1) + more for i in range(len(self.job.replicas))}
        for replica, pushes in wanted.items():
            until(
                functools.partial(self._has_acked, replica, pushes),
                f"push {pushes} of honest replica {replica}; {self.said()}",
            )

    def _has_acked(self, replica: int, pushes: int) -> bool:
        return self.acked(replica) >= pushes

    def processes(self) -> dict[str, int]:
        """Role -> pid."""
        roles = {"coordinator": self.job.coordinator}
        roles |= {f"shard {i}": shard for i, shard in enumerate(self.job.shards)}
        roles |= {f"replica {i + 1}": replica for i, replica in enumerate(self.job.replicas)}
        return {name: command.pid for name, command in roles.items()}

    def rss(self) -> dict[int, int]:
        """pid -> bytes of memory."""
        return {pid: psutil.Process(pid).memory_info().rss for pid in self.processes().values()}

    def memory(self) -> dict[str, int]:
        """Role -> bytes of memory."""
        return {name: psutil.Process(p).memory_info().rss for name, p in self.processes().items()}

    def said(self) -> str:
        """The last words of everybody."""
        commands = [self.job.coordinator, *self.job.shards, *self.job.replicas]
        return "\n".join(f"-- pid {c.pid}: {c.said[-1000:]}" for c in commands)

    def check(self, after: str) -> None:
        """Nobody honest was ended, called dead, slowed to a stop, or made to hoard."""
        commands = [self.job.coordinator, *self.job.shards, *self.job.replicas]
        assert all(command.is_running for command in commands), f"after {after}: {self.said()}"
        self.until_everybody_pushes(20)
        now = self.status()
        assert now["state"] == "running", f"after {after}: {now['state']}: {now['reason']}"
        honest = {r["name"]: r for r in now["replicas"] if r["name"] in self.names}
        assert {n: (r["state"], r["incarnation"]) for n, r in honest.items()} == {
            name: ("live", 1) for name in self.names
        }, f"after {after}"
        assert [s["state"] for s in now["shards"]] == ["ready"] * len(now["shards"]), after
        for name, pid in self.processes().items():
            grown = psutil.Process(pid).memory_info().rss - self._rss[pid]
            assert grown < GROWTH_MAX, f"after {after}: {name} grew by {grown / MIB:.0f} MiB"
        for command in commands:
            assert len(command.said) < OUTPUT_MAX, f"after {after}: {command.said[:2000]}"
            assert "Traceback" not in command.said, f"after {after}: {command.said[-4000:]}"

    def end(self) -> dict[str, Any]:
        """The ordinary end. The oracle: each honest row is exact, to the last push."""
        (self.folder / "stop").touch()
        for replica in self.job.replicas:
            assert replica.wait() == 0, replica.said
        report = self.job.finish()
        parameters = safetensors.numpy.load_file(self.job.run_folder / "parameters.safetensors")
        for index in range(len(self.job.replicas)):
            notes = read_notes(journal_path(self.folder, index + 1, 1))
            settled = [int(words[1]) for words in notes if words[0] == "settled"]
            assert settled, f"replica {index + 1} did not come to its end"
            np.testing.assert_array_equal(
                parameters["counts"][index],
                expected_row(settled[0]),
                err_msg=f"replica {index + 1} knows {settled[0]} pushes acknowledged",
            )
        strangers = parameters["counts"][len(self.job.replicas) :]
        assert not strangers.any(), "something was applied that nobody honest pushed"
        return report
