"""What a user's code prints, as lines for people."""

from __future__ import annotations

import pytest

from pydownpour import limits
from pydownpour.engines.prints import Lines


class Told:
    """Hears lines; printed to at a moment."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._cutter = Lines(self.lines.append)

    def take(self, text: str | bytes, now: float = 0.0) -> list[str]:
        data = text.encode() if isinstance(text, str) else text
        self.lines.clear()
        self._cutter.take(data, now)
        return list(self.lines)


def test_lines_are_told_when_they_end() -> None:
    told = Told()
    assert told.take("one\ntw") == ["one"]
    assert told.take("o\n\nthr") == ["two"]
    assert told.take("ee\n") == ["three"]
    euro = "5 \u20ac\n".encode()
    assert told.take(euro[:3]) + told.take(euro[3:]) == ["5 \u20ac"]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("  1%\r 50%\r100%\n", "100%"),
        ("a\tb  \n", "a   b"),
        ("\x1b[2J\x1b[1;31mred\x1b[0m\x1b7\n", "red?7"),
        (b"\xff\n", "\ufffd"),
        ("x" * 1000 + "\n", "x" * limits.DEFAULT.print_line_len_max + "..."),
    ],
)
def test_nothing_that_is_printed_moves_the_display(printed: str | bytes, shown: str) -> None:
    assert Told().take(printed) == [shown]


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    told = Told()
    for _ in range(1000):
        told.take("x" * 1000)
    assert len(told._cutter._partial) == 4 * limits.DEFAULT.print_line_len_max


def test_more_than_anybody_can_read_is_counted() -> None:
    told = Told()
    burst = limits.DEFAULT.print_burst
    lines = told.take("".join(f"{number}\n" for number in range(burst + 100)))
    assert lines == [str(number) for number in range(burst)]
    assert told.take("late\n", 1.0) == ["(100 more lines; all are in the log)", "late"]
    assert told.take("too many\n", 1.0) == [], "print_lines_per_s of them, that count included"
    assert len(told.take("x\n" * 1000, 1e6)) == burst
