"""What a process says of itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

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


def test_peak_and_present_belong_together() -> None:
    assert 0 < process.rss_bytes() <= process.rss_peak_bytes() + (1 << 20)


def test_without_proc_getrusage_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_peak_in_proc", lambda: 0)
    assert process.rss_peak_bytes() > 0
