"""What shows only in a process of its own: its memory, its environment, pickled names."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from pydownpour.jobfiles import load_job
from pydownpour.net import process

CHILD = "from pydownpour.net import process; print(process.rss_peak_bytes())"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere getrusage is right")
def test_a_child_s_peak_is_its_own_and_not_its_parent_s() -> None:
    ballast = np.ones(50_000_000)  # 400 MB, resident
    # A preexec_fn makes subprocess fork, as a supervisor on an older system does.
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: None,
    )
    assert 0 < int(done.stdout) < ballast.nbytes / 2
    assert process.rss_peak_bytes() > ballast.nbytes


PURE = """
import asyncio
from pydownpour.net import process
from pydownpour.net.access import Access, Bind
from pydownpour.net.client import Client
from pydownpour.net.server import Server
from pydownpour.errors import ConfigError
from pydownpour.wire.messages import Status

async def main():
    for attempt in (
        Server([], bind=Bind(), access=Access(), name="test").start(),
        Client("http://127.0.0.1:9", access=Access()).get("/v1/status", Status),
    ):
        try:
            await attempt
        except ConfigError as error:
            print(error)

asyncio.run(main())
"""


def test_the_pure_python_http_parser_is_found_out_and_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, lines in (("1", 2), ("", 0)):
        monkeypatch.setenv("AIOHTTP_NO_EXTENSIONS", variable)
        done = subprocess.run(
            [sys.executable, "-c", PURE], capture_output=True, text=True, timeout=60
        )
        if variable:
            assert done.stdout.count("AIOHTTP_NO_EXTENSIONS is set") == lines, done.stderr
        else:
            assert "AIOHTTP" not in done.stdout + done.stderr


GOOD = """
import numpy as np
import pydownpour as dp

job = dp.Job(parameters={"w": np.zeros(4, np.float32)}, optimizer=dp.SGD(lr=0.1))

@job.replica
async def train(replica):
    pass

if __name__ == "__main__":
    raise SystemExit("the main part ran")
"""

HELPER = """
def triple(x):
    import beside_this_job
    return x * beside_this_job.FACTOR

job.helper = triple
"""


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("my_job.py", "spawn"),
        ("my_job.py", "forkserver"),
        ("queue.py", "spawn"),
        ("digits v2 (é)-b.py", "spawn"),
    ],
)
def test_workers_that_are_not_forked_run_functions_of_a_job_file(
    tmp_path: Path, name: str, method: str
) -> None:
    """Whatever the file is called: what travels is a name, and it says where the file is."""
    (tmp_path / "beside_this_job.py").write_text("FACTOR = 3")
    path = tmp_path / name
    path.write_text(GOOD + HELPER)
    job = load_job(str(path))
    with ProcessPoolExecutor(1, mp_context=get_context(method)) as workers:
        assert workers.submit(job.helper, 4).result(60) == 12  # type: ignore[attr-defined]
