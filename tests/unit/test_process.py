"""What a process says of itself."""

from __future__ import annotations

import pytest

from pydownpour.net import process


def test_peak_and_present_belong_together() -> None:
    assert 0 < process.rss_bytes() <= process.rss_peak_bytes() + (1 << 20)


def test_without_proc_getrusage_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_peak_in_proc", lambda: 0)
    assert process.rss_peak_bytes() > 0
