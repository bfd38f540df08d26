"""Charts as SVG, small and plain: lines with points, bars, and steps, on linear or log axes.

Text and axes take the page's own colour, so a chart is legible on light and dark ground alike; as a
file of its own it follows the viewer's preference.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import Final

WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 34, 46
LEGEND_ROW: Final = 17
GLYPH: Final = 6.9
"""Mean width of a letter, for the room that legends and labels need."""

COLOURS: Final = ("#3b82c4", "#e07b39", "#2e9e6b", "#c0559b", "#8a7f2d", "#7a6fd0", "#d04a4a")
"""Told apart with any kind of sight for colours, on white and on black; markers differ too."""
MARKS: Final = ("circle", "square", "diamond", "triangle")

STYLE: Final = (
    "svg.chart{color:#222;max-width:100%;height:auto}"
    "svg.chart text{fill:currentColor}svg.chart .title{font-weight:600;font-size:13px}"
    "svg.chart .axis{stroke:currentColor;fill:none}"
    "svg.chart .grid{stroke:currentColor;opacity:.15}"
    "@media(prefers-color-scheme:dark){svg.chart{color:#ddd}}"
)


@dataclasses.dataclass(frozen=True)
class Series:
    """One line, or one colour of bars.

    Attributes:
        name: In the legend.
        points: (x, y); those that are not finite are left out.
        dashed: A line to compare with.
        marks: A mark at each point; else a line only.
    """

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    marks: bool = True


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines over a numeric axis."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    y_from: float | None = None
    y_to: float | None = None
    x_ticks: Sequence[float] = ()
    """Where the x axis has ticks, if not where it finds best."""


@dataclasses.dataclass(frozen=True)
class Bars:
    """Groups of bars: ``series[i].points`` are (index of the group, height)."""

    title: str
    x: str
    y: str
    groups: Sequence[str]
    series: Sequence[Series]
    log_y: bool = False
    y_from: float | None = None
    y_to: float | None = None


Chart = Lines | Bars


class Axis:
    """From values to pixels, and where its ticks are."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, log: bool,
        low: float | None = None, high: float | None = None,
    ) -> None:  # fmt: skip
        self.log = log
        usable = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
        self.low = min(usable) if low is None else low
        self.high = max(usable) if high is None else high
        if self.high <= self.low:
            self.high = self.low * 10 if log else self.low + 1.0
        if not log and low is None:
            self.low = 0.0 if 0 <= self.low < 0.5 * self.high else self.low
        self.start, self.end = start, end
        self.ticks = self._log_ticks() if log else self._ticks()
        self.low = min(self.low, self.ticks[0]) if low is None else self.low
        self.high = max(self.high, self.ticks[-1]) if high is None else self.high

    def at(self, value: float) -> float:
        """Its pixel."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = (value - low) / (high - low)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def fits(self, value: float) -> bool:
        """Whether it can be drawn where it belongs."""
        return math.isfinite(value) and (value > 0 or not self.log)

    def _ticks(self) -> list[float]:
        rough = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough * 0.999)
        first = math.floor(self.low / step + 1e-9)
        last = math.ceil(self.high / step - 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        grid = [m * 10.0**i for i in range(first, last + 1) for m in (1, 2, 5)]
        below = [value for value in grid if value <= self.low * 1.0001]
        above = [value for value in grid if value >= self.high * 0.9999]
        inside = [value for value in grid if below[-1] <= value <= above[0]]
        whole = [10.0**i for i in range(first, last + 1) if below[-1] <= 10.0**i <= above[0]]
        return inside if len(inside) <= 7 else whole


def svg(chart: Chart) -> str:
    """The chart as an SVG element that needs nothing around it."""
    if any(not one.points for one in chart.series):  # of a form that did not run them
        chart = dataclasses.replace(chart, series=[one for one in chart.series if one.points])
    legend = _legend_rows(chart.series)
    top = TOP + LEGEND_ROW * len(legend)
    height = HEIGHT + LEGEND_ROW * max(0, len(legend) - 1)
    ys = [y for one in chart.series for _, y in one.points]
    if isinstance(chart, Bars) and not chart.log_y:
        ys.append(0.0)
    down = Axis(
        ys, height - BOTTOM, top, log=chart.log_y, low=chart.y_from, high=chart.y_to
    )  # fmt: skip
    body = _lines(chart, down, height) if isinstance(chart, Lines) else _bars(chart, down, height)
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" font-family="system-ui, sans-serif" '
        f'font-size="12">',
        f"<style>{STYLE}</style>",
        _text(LEFT, 18, chart.title, "title"),
        *_legend(chart, legend),
        *_y_axis(down, chart.y),
        *body,
        f'<path class="axis" d="M{LEFT} {top}V{height - BOTTOM}H{WIDTH - RIGHT}"/>',
        _text((LEFT + WIDTH - RIGHT) / 2, height - 8, chart.x, anchor="middle"),
        "</svg>",
    ]
    return "\n".join(parts)


def _lines(chart: Lines, down: Axis, height: int) -> list[str]:
    xs = [x for one in chart.series for x, _ in one.points]
    across = Axis(xs, LEFT, WIDTH - RIGHT, log=chart.log_x)
    base = height - BOTTOM
    parts = []
    for tick in chart.x_ticks or across.ticks:
        at = across.at(tick)
        parts.append(f'<path class="axis" d="M{at:.1f} {base}v4"/>')
        parts.append(_text(at, base + 17, _number(tick), anchor="middle"))
    for i, one in enumerate(chart.series):
        points = [
            (across.at(x), down.at(y)) for x, y in one.points if across.fits(x) and down.fits(y)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour, dash = _colour(i), ' stroke-dasharray="6 4"' if one.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        if one.marks:
            parts += [_mark(i, x, y) for x, y in points]
    return parts


def _bars(chart: Bars, down: Axis, height: int) -> list[str]:
    base, room = height - BOTTOM, (WIDTH - RIGHT - LEFT) / max(1, len(chart.groups))
    wide = min(0.8 * room / max(1, len(chart.series)), 46.0)
    parts = []
    for g, group in enumerate(chart.groups):
        middle = LEFT + (g + 0.5) * room
        parts.append(_text(middle, base + 17, group, anchor="middle"))
        for i, one in enumerate(chart.series):
            for at, y in one.points:
                if at != g or not down.fits(y):
                    continue
                left = middle + (i - len(chart.series) / 2) * wide
                top = down.at(y)
                parts.append(
                    f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{wide - 2:.1f}" '
                    f'height="{max(base - top, 0.5):.1f}" fill="{_colour(i)}"/>'
                )
    return parts


def _y_axis(down: Axis, label: str) -> list[str]:
    parts = []
    for tick in down.ticks:
        at = down.at(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 7, at + 4, _number(tick), anchor="end"))
    middle = (down.start + down.end) / 2
    return [
        *parts,
        f'<text x="15" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 15 {middle:.1f})">{html.escape(label)}</text>',
    ]


def _legend_rows(series: Sequence[Series]) -> list[list[int]]:
    rows: list[list[int]] = []
    room = 0.0
    for i, one in enumerate(series):
        needed = 34 + GLYPH * len(one.name)
        if not rows or needed > room:
            rows.append([])
            room = float(WIDTH - RIGHT - LEFT)
        rows[-1].append(i)
        room -= needed
    return rows


def _legend(chart: Chart, rows: Sequence[Sequence[int]]) -> list[str]:
    parts = []
    for number, row in enumerate(rows):
        x, y = float(LEFT), TOP + LEGEND_ROW * number
        for i in row:
            one = chart.series[i]
            parts += _swatch(one, i, x, y) if isinstance(chart, Lines) else [_block(i, x, y)]
            parts.append(_text(x + 25, y + 4, one.name))
            x += 34 + GLYPH * len(one.name)
    return parts


def _swatch(one: Series, i: int, x: float, y: float) -> list[str]:
    dash = ' stroke-dasharray="6 4"' if one.dashed else ""
    line = f'<path d="M{x:.1f} {y}h20" stroke="{_colour(i)}" stroke-width="2"{dash}/>'
    return [line, _mark(i, x + 10, y)] if one.marks else [line]


def _block(i: int, x: float, y: float) -> str:
    return f'<rect x="{x + 4:.1f}" y="{y - 6}" width="14" height="12" fill="{_colour(i)}"/>'


def _mark(i: int, x: float, y: float) -> str:
    colour, kind = _colour(i), MARKS[i % len(MARKS)]
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    shape = {
        "square": "m-3.2 -3.2h6.4v6.4h-6.4z",
        "diamond": "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
        "triangle": "m0 -4.2l4.2 7.4h-8.4z",
    }[kind]
    return f'<path d="M{x:.1f} {y:.1f}{shape}" fill="{colour}"/>'


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    of_class = f' class="{kind}"' if kind else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text{of_class} {place}>{html.escape(words)}</text>"


def _number(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.10g}"
