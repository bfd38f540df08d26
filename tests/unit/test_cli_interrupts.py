"""What the first, the second and the third signal mean."""

from __future__ import annotations

from pydownpour import limits
from pydownpour.cli.interrupts import Interrupts

AGAIN_S = limits.DEFAULT.signals_one_s
"""As late as a second request."""


def test_the_first_stops_the_second_asks_the_third_kills() -> None:
    interrupts = Interrupts()
    assert [interrupts.decide(100 + number * AGAIN_S) for number in range(5)] == [
        "stop", "remind", "kill", "kill", "kill",
    ]  # fmt: skip


def test_two_signals_within_half_a_second_are_one() -> None:
    interrupts = Interrupts()
    times = [0.0, 0.05, 1.0, 1.05, 1.3, 2.0]
    assert [interrupts.decide(now) for now in times] == [
        "stop", "same", "remind", "same", "same", "kill",
    ]  # fmt: skip


def test_the_very_first_signal_stops_whatever_the_clock_shows() -> None:
    assert Interrupts().decide(0.0) == "stop"
    assert Interrupts().decide(1e9) == "stop"
