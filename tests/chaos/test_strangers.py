"""Strangers who call and say nothing, at processes that have few descriptors."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.chaos.processes import ROOT, ByHand, until

pytestmark = pytest.mark.chaos

DESCRIPTORS = 160
STRANGERS = 300
PROGRAM = (
    sys.executable,
    "-c",
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS},) * 2)\n"
    "from pydownpour.cli import main; main()",
)


class Crowd:
    """Calls the same numbers again and again, and never says a word."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.calls = 0
        self._held: dict[str, list[socket.socket]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        for held in self._held.values():
            for sock in held:
                sock.close()

    def _run(self) -> None:
        while not self._over.wait(0.0 if self.calls < STRANGERS else 0.005):
            for url in list(self.urls):
                self._call(url)

    def _call(self, url: str) -> None:
        target = urlsplit(url)
        held = self._held.setdefault(url, [])
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((target.hostname, target.port), timeout=5))
            self.calls += 1
        if len(held) > STRANGERS:
            held.pop(0).close()


def test_a_job_of_few_descriptors_trains_in_a_crowd_of_silent_strangers(tmp_path: Path) -> None:
    counted = ROOT / "tests" / "e2e" / "counted_job.py"
    with ByHand(counted, tmp_path, shards=1, program=PROGRAM) as job, Crowd() as crowd:
        crowd.urls += [job.url, job.shards[0].url]
        until(lambda: crowd.calls > 2 * STRANGERS, "crowd")
        replica = job.replica()
        assert replica.wait() == 0, replica.said
        report = job.finish()
    assert report["state"] == "done"
    assert (report["metrics"]["least"], report["metrics"]["most"]) == (12.0, 12.0)
    for role in (job.coordinator, *job.shards):
        assert "Traceback" not in role.said, role.said
