"""Watching a run: a live table on a terminal, plain lines elsewhere.

Both are observers (``engines.base.Observer``) and context managers. The live one is drawn when a
status arrives and at no other time: no flicker. ``Detached`` takes either off the run's thread.
"""

from __future__ import annotations

import abc
import logging
import threading
from collections import deque
from typing import IO, TYPE_CHECKING, Any, Final, final

from pydownpour.cli.progress import Rates, View, duration, size, sparkline
from pydownpour.wire.messages import Status

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table

log = logging.getLogger(__name__)

PLAIN_EVERY_S: Final = 2.0
"""Between two plain lines; what happens is said at once."""
WIDE: Final = 70
"""Columns from which a replica's row has everything."""
EVENTS_KEPT: Final = 1000
"""Lines that wait for a reader who does not read."""
REPLICA_ROWS_MAX: Final = 24
"""Replica rows on a terminal; the rest are counted in one line."""


class Display(abc.ABC):
    """Shows a run. A context manager; leaving it clears what was only for the moment."""

    def __enter__(self) -> Display:
        return self

    @abc.abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Take down what was only for the moment."""

    @abc.abstractmethod
    def event(self, event: str, words: str) -> None:
        """Say at once what happened."""

    @abc.abstractmethod
    def status(self, status: Status) -> None:
        """Show how the job stands."""


@final
class Detached(Display):
    """Any display on a thread of its own: who reads slowly, or not at all, holds up no run.

    What happens meanwhile waits, the newest ``EVENTS_KEPT`` of it, and the newest status.

    Args:
        display: Entered, told and left on that thread alone. Its failures end it and nothing else.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._events: deque[tuple[str, str]] = deque()
        self._skipped = 0
        self._status: Status | None = None
        self._over = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pydownpour-display", daemon=True)

    def __enter__(self) -> Detached:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Wait until everything was shown."""
        with self._news:
            self._over = True
            self._news.notify()
        self._thread.join()

    def event(self, event: str, words: str) -> None:
        """Queued; said at the next turn of the loop."""
        with self._news:
            if len(self._events) == EVENTS_KEPT:
                self._events.popleft()
                self._skipped += 1
            self._events.append((event, words))
            self._news.notify()

    def status(self, status: Status) -> None:
        """Will be shown soon, unless a newer one comes before."""
        with self._news:
            self._status = status
            self._news.notify()

    def _run(self) -> None:
        try:
            with self._display as display:
                while self._show(display):
                    pass
        except Exception as error:
            log.warning("the display failed (%r); the run goes on without it", error)

    def _show(self, display: Display) -> bool:
        """Show what has come; False once nothing more will."""
        with self._news:
            self._news.wait_for(lambda: self._events or self._status or self._over)
            events, skipped, status = list(self._events), self._skipped, self._status
            self._events.clear()
            self._skipped, self._status = 0, None
            over = self._over
        if skipped:
            display.event("skipped", f"({skipped:,} lines were not shown: nobody read them)")
        for event, words in events:
            display.event(event, words)
        if status is not None:
            display.status(status)
        return not over


def make_display(out: IO[str]) -> Display:
    """Live on a terminal that can move its cursor, plain lines elsewhere."""
    if out.isatty():
        from rich.console import Console

        console = Console(file=out)
        if console.is_terminal and not console.is_dumb_terminal:
            return LiveDisplay(console)
    return PlainDisplay(out)


@final
class PlainDisplay(Display):
    """One line every few seconds and one for everything that happens."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._rates = Rates()
        self._next_s = 0.0
        self._evaluations = 0
        self._state = ""

    def __exit__(self, *exc: object) -> None: ...

    def event(self, event: str, words: str) -> None:
        """Say at once what happened."""
        self._say(words)

    def status(self, status: Status) -> None:
        """A line if it is time for one, if the job's state changed, or after an evaluation."""
        view = self._rates.view(status)
        news = status.state != self._state or len(status.evaluations) > self._evaluations
        if not news and status.elapsed_s < self._next_s:
            return
        self._state, self._evaluations = status.state, len(status.evaluations)
        self._next_s = status.elapsed_s + PLAIN_EVERY_S
        self._say(view.line())

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


@final
class LiveDisplay(Display):
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = Rates()
        self._live: Live | None = None

    def __enter__(self) -> LiveDisplay:
        from rich.live import Live

        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Take the table down; the cursor is visible again."""
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None

    def event(self, event: str, words: str) -> None:
        """A line above the table."""
        style = {"restart": "yellow", "stop": "yellow", "storage": "yellow", "print": ""}.get(
            event, "dim"
        )
        # Not wrapped here: a command that is shown can be copied as one line.
        self._console.print(words, style=style, highlight=False, markup=False, soft_wrap=True)

    def status(self, status: Status) -> None:
        if self._live is not None:
            view = self._rates.view(status)
            self._live.update(draw(view, self._console.width), refresh=True)


def draw(view: View, width: int) -> Group:
    """The whole picture of one moment."""
    from rich.console import Group

    parts: list[Any] = [
        _head(view, width),
        _notes(view),
        _losses(view, width),
        _replicas(view, width),
    ]
    parts += [_shards(view), _waits(view)]
    return Group(*(part for part in parts if part is not None))


def _head(view: View, width: int) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    status = view.status
    row = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 1, None):
        row.add_column(ratio=ratio, no_wrap=True)
    passes = f"pass {min(status.pass_index + 1, status.passes)}/{status.passes}  "
    left = Text.assemble(
        (status.job, "bold"), f"  {passes if status.passes else ''}", (view.policy, "dim")
    )
    if status.state != "running":
        return _waiting(row, left, view)
    eta = f"  {duration(view.eta_s)} left" if view.eta_s is not None else ""
    right = Text(f"{view.samples_per_s:,.0f} samples/s  {duration(status.elapsed_s)}{eta}")
    bar = ProgressBar(total=1.0, completed=view.fraction, width=max(10, width - 70))
    row.add_row(left, bar if status.units else Text(""), right)
    return row


def _waiting(row: Table, left: Any, view: View) -> Table:
    from rich.text import Text

    words = f"{view.status.state}: {view.status.reason}" if view.status.reason else ""
    row.add_row(
        left, Text(words or view.status.state, style="yellow", overflow="ellipsis"),
        Text(duration(view.status.elapsed_s)),
    )  # fmt: skip
    return row


def _notes(view: View) -> Any:
    """What an operator should know of a job that runs: who holds it up, say."""
    from rich.text import Text

    if view.status.state != "running" or not view.status.reason:
        return None
    return Text(view.status.reason, style="yellow", overflow="ellipsis", no_wrap=True)


def _losses(view: View, width: int) -> Any:
    from rich.text import Text

    if view.loss is None:
        return None
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in view.metrics.items())
    if metrics:
        metrics += f" (after pass {view.status.evaluations[-1].passes})"
    bars = sparkline([loss for _, _, loss in view.status.losses], max(10, min(60, width - 60)))
    return Text.assemble(
        "loss ", (f"{view.loss:.4f} ", "bold"), (bars, "cyan"), f"  {metrics}",
        overflow="ellipsis", no_wrap=True,
    )  # fmt: skip


_STATE_STYLE: Final = {"live": "green", "suspect": "yellow", "dead": "red", "left": "dim"}


def _replicas(view: View, width: int) -> Table | None:
    from rich.table import Table
    from rich.text import Text

    if not view.replicas:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=width >= WIDE)
    # A narrow terminal keeps whole columns rather than the beginnings of all.
    shown = 7 if width >= WIDE else 4
    titles = ("replica", "state", "samples/s", "staleness", "units", "pushes", "waiting for")
    for title in titles[:shown]:
        text = title in ("replica", "state", "waiting for")
        table.add_column(
            title,
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if text else "right",
            # Only the last one gives way: numbers are never cut.
            ratio=1 if title == "waiting for" else None,
        )
    for line in view.replicas[:REPLICA_ROWS_MAX]:
        cells = (
            Text(line.name), Text(line.state, style=_STATE_STYLE.get(line.state, "")),
            f"{line.samples_per_s:,.0f}", f"{line.staleness:.1f}", f"{line.units:,}",
            f"{line.pushes:,}", Text(line.waiting_for, style="dim"),
        )  # fmt: skip
        table.add_row(*cells[:shown])
    if more := len(view.replicas) - REPLICA_ROWS_MAX:
        if more > 0:
            table.add_row(f"and {more} more")
    return table


def _shards(view: View) -> Any:
    from rich.text import Text

    s = view.shards
    if not s.shards:
        return None
    lsns = "/".join(str(lsn) for lsn in s.lsns[:8]) + ("/..." if len(s.lsns) > 8 else "")
    return Text(
        f"shards {s.ready}/{s.shards} ready   in {size(s.bytes_in_per_s)}/s   "
        f"out {size(s.bytes_out_per_s)}/s   lsn {lsns}   streams {s.streams}",
        style="dim", overflow="ellipsis", no_wrap=True,
    )  # fmt: skip


def _waits(view: View) -> Any:
    """One line, from the first step on: words come and go in it, and no line does."""
    from rich.text import Text

    if view.waits is None:
        return None
    return Text(view.waits.line(), style="dim", overflow="ellipsis", no_wrap=True)
