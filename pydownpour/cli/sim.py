"""``pydownpour sim``: a job file on virtual time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, TypeVar, cast, final

import click
import msgspec

from pydownpour.cli.failures import Failure, Interrupted, in_words
from pydownpour.cli.options import forwarded_limits, limit_option
from pydownpour.engines.base import EXIT_FAILED
from pydownpour.errors import ConfigError
from pydownpour.limits import Limits

F = TypeVar("F", bound=Callable[..., Any])

CALM: Final = "calm"
STOPPED: Final = "stopped by SIGINT"
TRACE_HEADER: Final = f"{'virtual s':>12}  {'event':<10}  {'who':<28}  number"


@final
@dataclasses.dataclass(frozen=True)
class SimOptions:
    """What the command line said. Every field but ``file`` is an option of the same name."""

    file: str
    shards: int
    replicas: int
    seed: int
    faults: str
    storm: float
    timing_only: bool
    latency: float
    bandwidth: float
    base_s: float
    per_sample_s: float
    events: int
    virtual_s: float
    limits: Limits

    def simulate(
        self,
        seed: int,
        trace: Any = None,
        run_folder: str | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Any:
        """Load the file again, so that no run sees what another left, and run it once."""
        from pydownpour.jobfiles import load_job
        from pydownpour.sim.api import simulate
        from pydownpour.sim.compute.cost import ComputeModel
        from pydownpour.sim.faults.plans import fault_plan
        from pydownpour.sim.machines.host import LinkModel

        return simulate(
            load_job(self.file),
            replicas=self.replicas,
            shards=self.shards,
            seed=seed,
            faults=dataclasses.replace(fault_plan(self.faults), storm_s=self.storm),
            links=LinkModel(latency_s=self.latency, bytes_per_s=self.bandwidth),
            compute=ComputeModel(base_s=self.base_s, per_sample_s=self.per_sample_s),
            timing_only=self.timing_only,
            trace=trace,
            run_folder=run_folder,
            events_max=self.events,
            virtual_s_max=self.virtual_s,
            limits=self.limits,
            say=say,
        )

    def replay(self, seed: int) -> str:
        """The command line that runs one seed again."""
        words = ["pydownpour", "sim", self.file, "--seed", str(seed)]
        for parameter in sim.params:
            name = parameter.name or ""
            if name in ("file", "seed", "timing_only", "limits") or name not in _FIELDS:
                continue
            if (value := getattr(self, name)) != parameter.default:
                words += [parameter.opts[0], f"{value:g}" if isinstance(value, float) else value]
        words += forwarded_limits(self.limits)
        return shlex.join(map(str, words + (["--timing-only"] if self.timing_only else [])))


_FIELDS: Final = {field.name for field in dataclasses.fields(SimOptions)}


class _Range(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # since click 8.2
    """``A..B``, both included."""

    name = "range"

    def convert(self, value: Any, param: Any, context: Any) -> range:
        """``0..99`` or ``7`` as a range, both ends included."""
        if isinstance(value, range):
            return value
        first, dots, last = str(value).partition("..")
        if not (dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            self.fail(f"{value!r} is no range of seeds; write for example 0..99", param, context)
        return range(int(first), int(last) + 1)


def _positive(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise click.BadParameter(f"{value} must be 0 or more, and finite")
    return value


def _number(name: str, default: float, metavar: str, words: str) -> Callable[[F], F]:
    return click.option(
        name, type=float, default=default, show_default=f"{default:g}", metavar=metavar,
        help=words, callback=_positive,
    )  # fmt: skip


def _count(name: str, default: int, words: str, least: int = 1) -> Callable[[F], F]:
    return click.option(
        name, type=click.IntRange(min=least), default=default, show_default=True, metavar="N",
        help=words,
    )  # fmt: skip


_OPTIONS = (
    _count("--shards", 2, "Simulated shards."),
    _count("--replicas", 4, "Simulated replicas."),
    _count("--seed", 0, "Of everything random.", least=0),
    click.option("--seeds", type=_Range(), default=None, metavar="A..B",
                 help="Run each of these seeds, one line each."),
    click.option("--faults", default=CALM, show_default=True, metavar="PLAN",
                 help="What goes wrong; an unknown name lists the plans."),
    _number("--storm", 4.0, "SECONDS", "Faults strike for so many virtual seconds."),
    click.option("--timing-only/--live", default=False,
                 help="Timing-only: compute nothing, push zeros, one step a unit. Live: real "
                 "gradients.  [default: live]"),
    _number("--latency", 0.0005, "SECONDS", "Mean one-way latency between two hosts."),
    _number("--bandwidth", 1e9, "BYTES/S", "Of each host's link, each direction."),
    _number("--base-s", 0.05, "SECONDS", "A step's cost in virtual time, whatever its size."),
    _number("--per-sample-s", 0.0001, "SECONDS", "And for each sample of its minibatch."),
    click.option("--trace", is_flag=True, help="Print one aligned line per event."),
    click.option("--check", is_flag=True,
                 help="Run the seed twice and show the first event that differs."),
    click.option("--json", "as_json", is_flag=True,
                 help="Print the report as the last line of standard output, the rest elsewhere."),
    click.option("--run-folder", type=click.Path(file_okay=False), default=None, metavar="DIR",
                 help="Keep what the simulated coordinator wrote: events, parameters, report."),
    _count("--events", 200_000_000, "Budget: more callbacks are a failure."),
    _number("--virtual-s", 1e6, "SECONDS", "Budget: more virtual seconds are a failure."),
)  # fmt: skip


def _options(command: F) -> F:
    wrapped: Any = command
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return cast(F, wrapped)


@click.command()
@click.argument("file", metavar="FILE[:JOB]")
@_options
@limit_option
@in_words
def sim(
    seeds: range | None, trace: bool, check: bool, as_json: bool, run_folder: str | None,
    **settings: Any,
) -> None:  # fmt: skip
    """Run a job file on virtual time, with seeded faults; nothing leaves this process.

    \b
    Example:
      pydownpour sim digits.py --replicas 64 --shards 2
      pydownpour sim digits.py --seed 7 --faults swizzle --trace    one line per event
      pydownpour sim digits.py --seed 7 --faults swizzle --check    twice the same?
      pydownpour sim digits.py --seeds 0..99 --faults swarm --timing-only
    It is the file that `pydownpour run` runs, with the same coordinator, shards and replicas; only
    time and the network are simulated. The same seed and settings give the same trace hash on
    every machine, so what went wrong once can be looked at as often as you like.
    Fault plans: calm, kill, power, pause, zombie, slow, links, partition, oneway, estranged,
    asleep, reset, forget, clog, skew, swizzle, churn, disk, hostile, moves (of shards, while
    replicas train), switch (of policies), swarm (each seed draws its own mix), doom (the job must
    fail, in words).
    Exit code 0: every run ended well and every check held.
    """
    options = SimOptions(**settings)
    out = sys.stderr if as_json else sys.stdout
    if run_folder:
        run_folder = os.path.abspath(run_folder)  # the job file may change the current folder
    try:
        with _ctrl_c_raises():
            if seeds is None:
                good, result = _one(options, out, trace=trace, check=check, run_folder=run_folder)
            elif trace or check or run_folder:
                raise ConfigError("--seeds runs many; --trace, --check and --run-folder need one")
            else:
                good, result = _many(options, seeds, out)
    except KeyboardInterrupt:  # before there was a world
        raise Interrupted(STOPPED) from None
    if as_json:
        click.echo(msgspec.json.encode(result))
    if result.get("failure") == STOPPED:
        raise Interrupted(STOPPED)
    if not good:
        raise Failure(_blame(options, seeds, result), EXIT_FAILED)


@contextlib.contextmanager
def _ctrl_c_raises() -> Iterator[None]:
    """Meanwhile there is something to put in order, and to print, before the command ends."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _blame(options: SimOptions, seeds: range | None, result: Any) -> str:
    from pydownpour.sim.report import verdict

    if seeds is not None:
        return (
            f"{len(result['failed'])} of {len(seeds)} seeds failed; replay the first with\n  "
            + (options.replay(result["failed"][0]))
        )
    if result.get("difference"):
        return f"seed {options.seed} is not repeatable"
    return f"{verdict(result)}\nreplay with {options.replay(options.seed)}"


# -- one seed --------------------------------------------------------------------------------------


def _one(
    options: SimOptions, out: IO[str], *, trace: bool, check: bool, run_folder: str | None
) -> tuple[bool, dict[str, Any]]:
    from pydownpour.sim.report import Stopped, first_difference, is_good
    from pydownpour.sim.trace import Trace

    if trace:
        print(TRACE_HEADER, file=out)
    first = Trace((lambda text: print(text, file=out)) if trace else None, keep=check)
    second = Trace(keep=True)
    try:
        report = options.simulate(
            options.seed, first, run_folder, lambda words: print(words, file=out, flush=True)
        )
        _print_report(report, out)
        again = options.simulate(options.seed, second)["trace_hash"] if check else ""
    except Stopped as stop:
        stopped = {**stop.report, "failure": STOPPED}
        _print_report(stopped, out)
        return False, stopped
    good = is_good(report)
    if check:
        difference = first_difference(first.kept or (), second.kept or ())
        same = again == report["trace_hash"] and not difference
        print(f"  {'again':<12} {again} {'the same' if same else 'DIFFERENT'}", file=out)
        if difference:
            print(difference, file=out)
        report["difference"] = difference
        good = good and same
    return good, report


def _print_report(report: dict[str, Any], out: IO[str]) -> None:
    from pydownpour.cli.summary import print_summary

    known = {key: value for key, value in report.items() if key not in _MEANINGLESS}
    if len(known.get("replicas", ())) > _REPLICAS_SHOWN:
        known["replicas"] = []
    print_summary(known, to=out)
    for name, words in _rows(report):
        print(f"  {name:<12} {words}", file=out)
    out.flush()


_MEANINGLESS: Final = {"rss_peak_bytes"}
"""What simulated processes say of it is a constant."""
_REPLICAS_SHOWN: Final = 16


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from pydownpour.cli.progress import sparkline

    if losses := [loss for _, _, loss in report.get("losses", ())]:
        yield "loss curve", f"{sparkline(losses, 50)} {losses[0]:.3g} to {losses[-1]:.3g}"
    yield (
        "time",
        f"{report['virtual_s']:,.3f} virtual s in {report['wall_s']:,.2f} s, "
        f"{report['messages']:,} messages ({report['messages_per_s']:,}/s)",
    )
    yield (
        "faults",
        f"{report['faults']}: {report['faults_injected']} took place, "
        f"{report['restarts']} restarts",
    )
    if report["faults"] != CALM and not report["faults_injected"]:
        yield "", "the job was over before anything went wrong: let steps take longer (--base-s)"
    for words in report["violations"]:
        yield "VIOLATION", words
    if report["failure"]:
        yield "FAILURE", report["failure"]
    yield "seed", f"{report['seed']}, trace hash {report['trace_hash']}"


# -- a range of seeds ------------------------------------------------------------------------------


def _many(options: SimOptions, seeds: range, out: IO[str]) -> tuple[bool, dict[str, Any]]:
    failed: list[int] = []
    hashes: dict[str, str] = {}
    result: dict[str, Any] = {
        "seeds": [seeds[0], seeds[-1]],
        "faults": options.faults,
        "failed": failed,
        "hashes": hashes,
    }
    try:
        for seed in seeds:
            report = options.simulate(seed)
            hashes[str(seed)] = report["trace_hash"]
            if not _print_verdict(options, seed, report, out):
                failed.append(seed)
    except KeyboardInterrupt:
        return False, {**result, "failure": STOPPED}
    return not failed, result


def _print_verdict(options: SimOptions, seed: int, report: dict[str, Any], out: IO[str]) -> bool:
    """One line of a seed, and of one that failed how to replay it; False if it failed."""
    from pydownpour.sim.report import is_good, verdict

    print(
        f"seed {seed:<6} {report['trace_hash']}  {report['virtual_s']:10.3f} virtual s  "
        f"{report['messages']:8,} messages  {report['faults_injected']:4} faults  "
        f"{verdict(report)}",
        file=out,
    )
    good = is_good(report)
    if not good:
        print(f"  replay: {options.replay(seed)}", file=out)
    out.flush()
    return good
