"""What a display shows, computed from statuses."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

import msgspec
import pytest
from rich.console import Console

from pydownpour.cli.display import (
    EVENTS_KEPT,
    Detached,
    Display,
    LiveDisplay,
    PlainDisplay,
    draw,
    make_display,
)
from pydownpour.cli.progress import Rates, duration, named, size, sparkline
from pydownpour.cli.summary import print_summary, summary
from pydownpour.wire.messages import (
    EvaluationEntry,
    ReplicaStats,
    ReplicaStatus,
    ShardStats,
    ShardStatus,
    Status,
    WaitEntry,
    WaitsEntry,
)
from tests.fakes.coordination import histogram

WAITING = "shard 0 at http://127.0.0.1:9, shard 1"


def make_replica(number: int, samples: int, **stats: Any) -> ReplicaStatus:
    return ReplicaStatus(
        id=number, name=f"replica-{number}", incarnation=1, state="live", host="here", pid=1,
        joins=1, age_s=0.1, units=samples // 10, samples=samples,
        stats=ReplicaStats(
            samples=samples, staleness=histogram(0, 4, 4, 4), pushes_acked=5, **stats
        ),
    )  # fmt: skip


def make_status(elapsed_s: float, done: int, **fields: Any) -> Status:
    shard = ShardStats(
        index=0, ready=True, lsn=done, bytes_received=done * 1000, bytes_sent=0, streams=2
    )
    given: dict[str, Any] = {
        "job": "digits", "state": "running", "reason": "", "elapsed_s": elapsed_s, "passes": 4,
        "pass_index": 1, "units_done": done // 10, "units": 100, "samples_done": done,
        "samples": 1000, "losses": [(0.0, 0, 2.0), (elapsed_s, done, 0.5)],
        "evaluations": [EvaluationEntry(passes=1, at_s=1.0, samples=250,
                                        metrics={"accuracy": 0.875})],
        "replicas": [make_replica(1, done // 2, waiting_for=WAITING)],
        "shards": [ShardStatus(index=0, state="ready", url="", pid=2, age_s=0.1, stats=shard)],
        "replicas_live": 1, "replicas_count": 1, "shards_ready": 1, "shards_count": 1,
        "bytes_to_shards": done * 1000, "bytes_from_shards": 0, "run_folder": "runs/x",
    }  # fmt: skip
    return Status(**{**given, **fields})


def test_rates_are_differences_over_the_window() -> None:
    rates = Rates()
    assert rates.view(make_status(0.0, 0)).samples_per_s == 0.0
    view = rates.view(make_status(2.0, 400))
    assert view.samples_per_s == 200.0
    assert view.eta_s == 3.0
    assert view.replicas[0].samples_per_s == 100.0
    assert view.shards.bytes_in_per_s == 200_000
    assert view.fraction == 0.4
    assert view.replicas[0].waiting_for == "shard 0, shard 1"
    later = rates.view(make_status(4.0, 500))
    assert later.samples_per_s == 50.0


def test_rates_never_fall_below_zero_when_a_process_counts_anew() -> None:
    rates = Rates()
    rates.view(make_status(0.0, 400))
    view = rates.view(make_status(1.0, 100))
    assert view.samples_per_s == 0.0
    assert view.replicas[0].samples_per_s == 0.0
    assert view.eta_s is None


def test_a_coordinator_that_starts_anew_starts_the_rates_anew() -> None:
    rates = Rates()
    rates.view(make_status(100.0, 400))
    assert rates.view(make_status(1.0, 10)).samples_per_s == 0.0


def test_the_plain_line_says_everything() -> None:
    rates = Rates()
    rates.view(make_status(0.0, 0))
    line = rates.view(make_status(2.0, 400)).line()
    assert line == (
        "   2.0 s  running     pass 2/4  40/100 units  200 samples/s  loss 0.5  accuracy 0.875  "
        "1 replicas, staleness 3.0"
    )
    waiting = make_status(
        0.1, 0, state="waiting", reason="waiting for shard 1", losses=[], evaluations=[],
        replicas=[], shards=[], units=0, samples=0,
    )  # fmt: skip
    assert Rates().view(waiting).line().endswith("waiting for shard 1")


FOR_WHOM = "round 7 waits for replicas 2 and 3"


def waiting_status(*seconds: float, **counts: int) -> Status:
    """Two replicas whose ids are not their numbers; one wait at each shard."""
    replicas = [
        msgspec.structs.replace(make_replica(number, 10), name=name)
        for number, name in ((1, "replica-1"), (2, "replica-0"), (3, "replica-2"))
    ]
    shards = [
        ShardStatus(
            index=index, state="ready", url="", pid=2, age_s=0.1,
            stats=ShardStats(
                index=index, clock_least=counts.get("clock_least", 118 - index),
                clock_most=counts.get("clock_most", 124),
                waits=WaitsEntry(
                    count=3,
                    open=[WaitEntry(3, 1 + index, [2], lasts, FOR_WHOM)],
                ),
            ),
        )
        for index, lasts in enumerate(seconds)
    ]  # fmt: skip
    return make_status(2.0, 400, replicas=replicas, shards=shards)


def test_the_longest_wait_is_shown_by_name_and_how_far_apart_clocks_are() -> None:
    waits = Rates().view(waiting_status(3.1, 1.5)).waits
    assert waits is not None
    words = "replica-1 waits at shard 0 for 3.1 s: round 7 waits for replica-0 and replica-2"
    assert waits.line() == f"clocks 117 to 124   {words}"
    assert waits.line() in Rates().view(waiting_status(3.1, 1.5)).line()
    steady = Rates().view(waiting_status(3.1, 3.2)).waits
    assert steady == waits, "one of two that are for the same round, and not now this, now that"


def test_a_wait_that_nobody_could_read_is_not_shown_and_no_line_comes_or_goes() -> None:
    heights = set()
    for seconds in (0.9, 1.1, 3.0):
        view = Rates().view(waiting_status(seconds, 0.0))
        assert view.waits is not None
        assert (" waits " in view.waits.line()) == (seconds > 1.0)
        console, out = make_console(100, no_color=True)
        console.print(draw(view, 100))
        heights.add(len(out.getvalue().splitlines()))
    assert len(heights) == 1
    together = Rates().view(waiting_status(0.0, clock_least=124)).waits
    assert together is not None
    assert together.line() == "clocks 124"
    assert Rates().view(waiting_status(0.0, clock_least=0, clock_most=0)).waits is None


def test_roles_know_ids_and_people_names() -> None:
    names = {1: "one", 2: "two", 12: "twelve"}
    for words, shown in (
        ("round 3 waits for replica 2", "round 3 waits for two"),
        ("replicas 1, 2 and 12 to finish 4 steps", "one, two and twelve to finish 4 steps"),
        ("replicas 1, 2, 3 and 9 more to come", "one, two, replica 3 and 9 more to come"),
        ("round 0 waits for 2 replicas (replicas=...)", None),
    ):
        assert named(words, names) == (shown or words)


def test_sparklines() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([1.0], 10) == "▁"
    assert sparkline([3.0, 3.0], 10) == "▁▁"
    assert sparkline([0.0, 1.0, 2.0, 7.0], 10) == "▁▂▃█"
    assert sparkline(range(1000), 8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(range(7), 5)) == 5


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5e12, "5.0 TB")],
)
def test_sizes(value: float, words: str) -> None:
    assert size(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(3.21, "3.2 s"), (60, "1:00"), (247, "4:07"), (3723, "1:02:03")]
)
def test_durations(value: float, words: str) -> None:
    assert duration(value) == words


def test_plain_lines_come_with_news_and_every_few_seconds() -> None:
    out = io.StringIO()
    with PlainDisplay(out) as display:
        for tick in range(9):
            display.status(make_status(tick * 0.25, tick))
        display.event("restart", "replica 1 was killed by SIGKILL; starts again in 0.5 s")
        display.status(make_status(2.3, 10, state="evaluating", reason="all passes are complete"))
    lines = out.getvalue().splitlines()
    assert [line.split(" s ")[0].strip() for line in lines[:2]] == ["0.0", "2.0"]
    assert lines[2].startswith("replica 1 was killed by SIGKILL")
    assert "evaluating" in lines[3]
    assert len(lines) == 4


def make_console(width: int = 100, **settings: Any) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=width, height=40, **settings), out


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_picture_has_every_part_and_fits(width: int) -> None:
    console, out = make_console(width, no_color=True)
    rates = Rates()
    rates.view(make_status(0.0, 0))
    console.print(draw(rates.view(make_status(2.0, 400)), width))
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert all(len(line) <= width for line in text.splitlines())
    for words in ("digits", "loss", "replica-1", "live", "shards 1/1 ready"):
        assert words in text
    if width >= 80:
        for words in (
            "shard 0, shard 1",
            "samples/s",
            "pass 2/4",
            "200 samples/s",
            "3.0 s left",
            "accuracy 0.8750",
            "3.0",
        ):
            assert words in text


def test_rows_keep_their_order_and_long_words_cut_no_number() -> None:
    console, out = make_console(80, no_color=True)
    replicas = [make_replica(n, 1_000_000, waiting_for="shard 0, " * 30) for n in (10, 2, 1)]
    console.print(draw(Rates().view(make_status(1.0, 100, replicas=replicas)), 80))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("replica-")]
    assert [line.split()[0] for line in lines] == ["replica-1", "replica-2", "replica-10"]
    assert all("100,000" in line for line in lines)


def test_a_waiting_job_says_for_whom() -> None:
    console, out = make_console(100, no_color=True)
    status = make_status(
        1.0, 0, state="waiting", reason="waiting for shard 1", losses=[], replicas=[], shards=[]
    )
    console.print(draw(Rates().view(status), 100))
    assert "waiting: waiting for shard 1" in out.getvalue()


def test_a_running_job_says_who_holds_it_up() -> None:
    words = "held long: unit 3 of pass 1 at replica 2 for 45.0 s"
    status = make_status(1.0, 0, reason=words)
    assert Rates().view(status).line().endswith(words)
    console, out = make_console(100, no_color=True)
    console.print(draw(Rates().view(status), 100))
    assert words in out.getvalue()


def test_names_from_the_network_are_text_and_not_markup() -> None:
    console, out = make_console(100, no_color=True)
    odd = ReplicaStatus(
        id=1, name="[red]x[/red]", incarnation=1, state="live", host="", pid=1, joins=1,
        age_s=0.0, units=0, samples=0, stats=ReplicaStats(waiting_for="[/]"),
    )  # fmt: skip
    console.print(draw(Rates().view(make_status(1.0, 0, replicas=[odd])), 100))
    assert "[red]x[/red]" in out.getvalue()


def test_hundreds_of_replicas_do_not_fill_the_screen() -> None:
    console, out = make_console(100, no_color=True)
    replicas = [make_replica(number, 10) for number in range(100)]
    console.print(draw(Rates().view(make_status(1.0, 100, replicas=replicas)), 100))
    assert "and 76 more" in out.getvalue()
    assert len(out.getvalue().splitlines()) < 40


def test_the_live_display_draws_and_leaves_a_clean_terminal() -> None:
    console, out = make_console(100)
    with LiveDisplay(console) as display:
        display.status(make_status(0.0, 0))
        display.event("restart", "replica 1 starts again")
    text = out.getvalue()
    assert "replica-1" in text
    assert "replica 1 starts again" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


class Stuck(Display):
    """A display whose reader does not read until it is let go."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.go = threading.Event()
        self.entered = threading.Event()

    def __exit__(self, *exc: object) -> None:
        self.shown.append("left")

    def event(self, event: str, words: str) -> None:
        self.entered.set()
        assert self.go.wait(60)
        self.shown.append(words)

    def status(self, status: Status) -> None:
        self.shown.append(f"status at {status.elapsed_s:g} s")


def test_a_reader_who_does_not_read_holds_up_nobody_and_then_sees_the_newest() -> None:
    stuck = Stuck()
    with Detached(stuck) as display:
        display.event("start", "first")
        assert stuck.entered.wait(60)
        for number in range(EVENTS_KEPT + 5):
            display.event("restart", f"line {number}")
            display.status(make_status(float(number), 0))
        assert stuck.shown == []
        stuck.go.set()
    last = EVENTS_KEPT + 4
    assert stuck.shown[:3] == ["first", "(5 lines were not shown: nobody read them)", "line 5"]
    assert stuck.shown[-3:] == [f"line {last}", f"status at {last} s", "left"]


def test_a_display_that_breaks_is_missed_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    out = io.StringIO()
    out.close()
    with Detached(PlainDisplay(out)) as display:
        display.event("start", "coordinator listens")
        display.status(make_status(0.0, 0))
    assert "the display failed" in caplog.text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console, out = make_console(100)
    console.print(draw(Rates().view(make_status(1.0, 100)), 100))
    assert "\x1b[3" not in out.getvalue()


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(make_display(io.StringIO()), PlainDisplay)


REPORT: dict[str, Any] = {
    "job": "digits", "state": "done", "reason": "all 4 passes are complete", "loss": 0.05,
    "metrics": {"accuracy": 0.9711}, "samples": 53880, "units": 880, "passes": 40, "seconds": 2.5,
    "samples_per_s": 21552.0, "pushes": {"sent": 10, "applied": 9, "refused": 1},
    "staleness": {"mean": 2.25, "max": 9, "histogram": {"2": 9}},
    "bytes": {"to_shards": 66_600_000, "from_shards": 17_300_000},
    "replicas": [{"id": 1, "name": "", "incarnations": 3, "units": 4, "samples": 8, "steps": 2,
                  "staleness": {"mean": 2.25}}],
    "rss_peak_bytes": {"coordinator": 65_000_000, "shard-0": 60_000_000, "shard-1": 61_000_000},
    "storage": "disk full",
}  # fmt: skip


def test_the_summary_has_a_row_for_everything() -> None:
    rows = dict(summary(REPORT))
    assert rows["accuracy"] == "0.9711"
    assert rows["work"] == ("53,880 samples, 880 units, 40 passes in 2.5 s (21,552 samples/s)")
    assert rows["pushes"] == "10 sent, 9 applied, 1 refused"
    assert rows["traffic"] == "66.6 MB to shards, 17.3 MB from shards"
    assert rows["replica 1"].endswith("restarted 2 times")
    assert rows["memory"] == "at most 65.0 MB in a coordinator, 61.0 MB in a shard"
    assert rows["storage"] == "disk full"


def test_the_summary_says_who_waited_for_whom() -> None:
    replicas = [
        {"id": 1, "name": "a", "waited_s": {"push": 0.01, "round": 12.0, "work": 3.0}},
        {"id": 2, "name": "b"},
    ]
    waits = {
        "count": 1234, "unnamed_s": 2.0,
        "pairs": [
            {"replica": 1, "on": 2, "seconds": 75.0}, {"replica": 2, "on": 7, "seconds": 1.0},
        ],
    }  # fmt: skip
    clocks = {"least": 5, "most": 1200, "spread_max": 3}
    report = {**REPORT, "replicas": replicas, "waits": waits, "clocks": clocks}
    rows = dict(summary(report))
    assert rows["waits"] == "1,234: a for b 1:15, b for 7 1.0 s, for nobody by name 2.0 s"
    assert rows["clocks"] == "5 to 1,200 steps, at most 3 apart"
    assert rows["a"].endswith("waited for round 12.0 s, work 3.0 s")
    assert "waits" not in dict(summary({**report, "waits": {**waits, "count": 0}}))


def test_one_name_is_one_row() -> None:
    """A job may call its metrics and replicas what it likes."""
    replica = REPORT["replicas"][0]
    report = {
        **REPORT,
        "metrics": {"loss": 0.07, "pushes": 3.0, "run folder": 1.0, "left": 5.0, "f1": 0.5},
        "replicas": [{**replica, "id": id, "name": name} for id, name in
                     ((1, "left"), (2, "right"), (3, "right"), (4, ""))],
    }  # fmt: skip
    names = [name for name, _ in summary(report)]
    assert len(names) == len(set(names))
    for name in ("loss", "evaluated loss", "evaluated pushes", "evaluated run folder", "f1",
                 "evaluated left", "left", "right (2)", "right (3)", "replica 4"):  # fmt: skip
        assert name in names
    assert dict(summary(report))["loss"] == "0.05"
    assert "loss" not in dict(summary({**report, "loss": None})), "nor where ours is unknown"
    replicas = [make_replica(number, 10) for number in (1, 2)]
    replicas = [msgspec.structs.replace(replica, name="same") for replica in replicas]
    evaluation = EvaluationEntry(passes=1, at_s=1.0, samples=250, metrics={"loss": 0.25})
    view = Rates().view(make_status(2.0, 400, replicas=replicas, evaluations=[evaluation]))
    assert [line.name for line in view.replicas] == ["same (1)", "same (2)"]
    assert "loss 0.5  evaluated loss 0.25" in view.line()


def test_a_poor_report_is_still_printed() -> None:
    out = io.StringIO()
    print_summary({"state": "failed", "reason": "no shard came"}, to=out, run_folder="runs/x")
    assert out.getvalue().splitlines() == ["job: failed (no shard came)", "  run folder   runs/x"]
