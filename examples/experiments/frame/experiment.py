"""What an experiment is: settings, what is measured, what is claimed. All of it data.

A script makes one :class:`Experiment`. A *setting* is a frozen dataclass of numbers, flags and
short texts; a *cell* is one run of one setting with one seed, and gives *figures*: everything that
the table, the charts and the claims are made from. Equal cells give equal figures wherever they
run, if they run in a simulated world; so any row of a table is replayed by the line beside it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from experiments.frame.charts import Chart

Setting: TypeAlias = Any
"""A frozen dataclass of the script's own."""
Figures: TypeAlias = Mapping[str, Any]
"""Numbers by name; a list of [x, y] pairs is a curve."""
FormName: TypeAlias = Literal["short", "full", "real"]
FORMS: Final[tuple[FormName, ...]] = get_args(FormName)

FOLDER: Final = Path(__file__).resolve().parents[1]
NOT_SCRIPTS: Final = {"run"}


@dataclasses.dataclass(frozen=True)
class Column:
    """A figure that the table shows: its name, its head, and how it is written."""

    figure: str
    head: str
    form: str = ".3f"


@dataclasses.dataclass(frozen=True)
class Published:
    """What a paper or an earlier measurement says.

    Attributes:
        text: The claim or the figure, in words.
        where: Where it stands: the figure or section of the paper.
        read: It was read in the paper itself. Else it is of our own throw-away simulation: a
            target to reproduce, not a truth.
    """

    text: str
    where: str
    read: bool

    @property
    def tag(self) -> str:
        return "published" if self.read else "our throw-away simulation"


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something that must hold: a figure within its band, both ends included."""

    words: str
    value: float
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def holds(self) -> bool:
        return self.at_least <= self.value <= self.at_most

    @property
    def band(self) -> str:
        if self.at_least == self.at_most:
            return f"= {self.at_least:g}"
        if math.isinf(self.at_least):
            return f"<= {self.at_most:g}"
        if math.isinf(self.at_most):
            return f">= {self.at_least:g}"
        return f"{self.at_least:g} to {self.at_most:g}"


@dataclasses.dataclass(frozen=True)
class Form:
    """Which settings are run, and with how many seeds (0, 1, ...)."""

    settings: Sequence[Setting]
    seeds: int = 1


class Results:
    """The figures of every cell that was run, and the form they belong to."""

    def __init__(self, form: FormName, cells: Mapping[tuple[Setting, int], Figures]) -> None:
        self.form = form
        self.cells = cells

    def settings(self) -> list[Setting]:
        """Each once, in the order they were declared."""
        return list(dict.fromkeys(setting for setting, _ in self.cells))

    def values(self, setting: Setting, figure: str) -> list[float]:
        """A figure of every seed; what was not finite came back as None and is infinite here.

        [] if it is none of this setting's: a script may have settings of several kinds.
        """
        cells = [figures for (of, _), figures in self.cells.items() if of == setting]
        found = [figures[figure] for figures in cells if figure in figures]
        return [math.inf if value is None else float(value) for value in found]

    def mean(self, setting: Setting, figure: str) -> float:
        """Over the seeds; NaN if it was not measured, so no claim about it holds."""
        values = self.values(setting, figure)
        return statistics.fmean(values) if values else math.nan

    def spread(self, setting: Setting, figure: str) -> float:
        """Standard deviation over the seeds; NaN with fewer than two, or where one is infinite."""
        values = self.values(setting, figure)
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return math.nan
        return statistics.stdev(values)

    def curve(self, setting: Setting, figure: str) -> list[tuple[float, float]]:
        """A curve of the first seed; [] if it was not run."""
        for (of, _), figures in self.cells.items():
            if of == setting:
                return [(float(x), float(y)) for x, y in figures[figure]]
        return []


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One script's whole content.

    Attributes:
        title: What it shows, in a line.
        source: Authors, year, place of the paper.
        setting: The class of its settings.
        measure: One cell: figures from (setting, seed). A pure function of both where simulated.
        columns: What the table shows.
        full, short: In simulated worlds: minutes; and at most 15 seconds on two cores, for CI.
        real: Over real sockets or in real processes, if there is such a form; measured by
        measure_real, one cell after the other, in the process that was started.
        published: What the paper and our notes say, printed beside the table.
        beside: Figures of those notes by setting, shown beside ours: {"accuracy": 0.9}.
        claims: What must hold of the results.
        charts: Pictures of the results.
        notes: Choices that matter and what differs from the paper.
    """

    title: str
    source: str
    setting: type
    measure: Callable[[Any, int], Figures]
    columns: Sequence[Column]
    full: Form
    short: Form
    claims: Callable[[Results], Iterator[Claim]]
    charts: Callable[[Results], Sequence[Chart]]
    published: Sequence[Published] = ()
    beside: Mapping[Setting, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    real: Form | None = None
    measure_real: Callable[[Any, int], Figures] | None = None
    notes: str = ""

    def form(self, name: FormName) -> Form:
        """One of its forms.

        Raises:
            ValueError: it has none over real sockets.
        """
        form = {"short": self.short, "full": self.full, "real": self.real}[name]
        if form is None:
            raise ValueError("this experiment has no form with real processes")
        return form

    def run(self, form: FormName, setting: Setting, seed: int) -> Figures:
        """Measure one cell; figures that are not finite become None, as JSON has it."""
        measure = self.measure_real if form == "real" else self.measure
        assert measure is not None, "a form with real processes needs measure_real"
        return {name: _plain(value) for name, value in measure(setting, seed).items()}

    def read_setting(self, text: str) -> Setting:
        """The setting that ``write_setting`` wrote.

        Raises:
            ValueError: an unknown field, or none where there must be one.
        """
        values: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, equals, value = part.partition("=")
            if name not in {field.name for field in dataclasses.fields(self.setting)} or not equals:
                raise ValueError(f"{part!r} is no setting here: name=value, with commas between")
            try:
                values[name] = json.loads(value)
            except json.JSONDecodeError:
                values[name] = value
        try:
            return self.setting(**values)
        except TypeError as error:
            raise ValueError(f"{text!r}: {error}") from error


def write_setting(setting: Setting) -> str:
    """``rule=adagrad,lr=0.02``: a setting as the command line takes it back.

    Fields that have their default are left out, but never all of them.
    """
    fields = dataclasses.fields(setting)
    told = [field for field in fields if getattr(setting, field.name) != field.default]
    return ",".join(
        f"{field.name}={_word(getattr(setting, field.name))}" for field in told or fields[:1]
    )


def _word(value: Any) -> str:
    word = value if isinstance(value, str) else json.dumps(value)
    assert not set(word) & set(",= '\""), f"{value!r} does not fit on a command line"
    return word


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def names() -> list[str]:
    """Every script of the folder."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in NOT_SCRIPTS)


def load(name: str) -> Experiment:
    """A script's experiment."""
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    assert isinstance(experiment, Experiment), f"{name}.py: EXPERIMENT is not one"
    return experiment
