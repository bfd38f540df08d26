"""Job: what a user declares, and nothing that runs.

A job file builds one :class:`Job` and names two functions. Every role loads the same file, so the
same parameters, optimizer and data exist in each process and only names and numbers travel::

    job = dp.Job(parameters=init, optimizer=dp.Adagrad(lr=0.05), data=dp.Work(len(x)))

    @job.replica
    async def train(replica): ...

    @job.evaluate
    def accuracy(parameters): ...

The services never import this module: they are handed the object (``train``, ``evaluation``,
``layout`` and the declared values).
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, config, limits
from pydownpour.codecs import Codec, compiled
from pydownpour.errors import ClosedError, ConfigError
from pydownpour.layout import DTYPE_CODES, Layout, arrays_of
from pydownpour.optimizers import Part
from pydownpour.policy import Policy, check_codec, check_together
from pydownpour.policy import check as check_policy
from pydownpour.policy.downpour import Downpour
from pydownpour.policy.phases import Phases, phases_of
from pydownpour.sampling import samples_at, units_in_pass
from pydownpour.storage import safetensors
from pydownpour.wire import messages
from pydownpour.wire.messages import JobLayout, Level

F = TypeVar("F", bound=Callable[..., Any])

WIRE_DTYPES: Final = tuple(DTYPE_CODES)
"""What gradients may travel as."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@final
@dataclasses.dataclass(frozen=True)
class Work:
    """The samples of a job, lent to replicas in units.

    Args:
        len: Samples in one pass, >= 1.
        unit: Samples in one unit, >= 1; the last unit of a pass may be shorter.
        passes: How often every sample is used, >= 1.
        shuffle: Each pass has its own order.
        seed: Of the orders, >= 0; equal seeds give equal orders on every machine.
        backup: A unit that a replica holds this many times longer than units usually take is lent
            to a second one that has nothing else to do; the first to complete it counts. From 1
            to ``limits.BACKUP_FACTOR_MAX``, or 0: never, and then a replica that hangs with a unit
            holds the job up.

    Raises:
        ConfigError: a number is out of range, a pass has more than ``limits.UNITS_MAX`` units, or
            all passes have more than ``limits.COUNT_MAX`` samples.

    An order is computed where it is used, from the seed: two thousand million samples cost no
    more memory than ten.

    Example:
        >>> Work(1000, unit=256, passes=3).units
        4
    """

    len: int
    unit: int = 256
    passes: int = 1
    shuffle: bool = True
    seed: int = 0
    backup: float = limits.BACKUP_FACTOR

    def __post_init__(self) -> None:
        for field, least in (("len", 1), ("unit", 1), ("passes", 1), ("seed", 0)):
            number = config.whole(f"Work: {field}", getattr(self, field), least=least)
            object.__setattr__(self, field, number)
        object.__setattr__(self, "shuffle", config.flag("Work: shuffle", self.shuffle))
        most = limits.BACKUP_FACTOR_MAX
        backup = config.real(
            "Work: backup", self.backup, lambda x: x == 0 or 1 <= x <= most,
            f"choose 0 (never) or 1 to {most:g} times what units usually take",
        )  # fmt: skip
        object.__setattr__(self, "backup", backup)
        if self.units > limits.UNITS_MAX:
            raise ConfigError(
                f"Work: {self.len} samples in units of {self.unit} are {self.units} units a pass, "
                f"the limit is {limits.UNITS_MAX} (UNITS_MAX); use a unit of at least "
                f"{units_in_pass(self.len, limits.UNITS_MAX)}"
            )
        if self.samples > limits.COUNT_MAX:
            raise ConfigError(
                f"Work: {self.passes} passes over {self.len} samples are more than 2**53 "
                "(COUNT_MAX); declare fewer passes"
            )

    @property
    def units(self) -> int:
        """Units in one pass: ``len / unit``, rounded up."""
        return units_in_pass(self.len, self.unit)

    @property
    def samples(self) -> int:
        """Samples over all passes."""
        return self.len * self.passes

    def indices(self, pass_index: int, start: int, stop: int) -> NDArray[np.int64]:
        """The samples at places [start, stop) of pass ``pass_index``'s order.

        Shapes:
            (stop - start,) int64, read-only, each index once in a pass.

        Raises:
            ConfigError: the pass or the places are outside the work.
        """
        if not (0 <= pass_index < self.passes and 0 <= start <= stop <= self.len):
            raise ConfigError(
                f"samples [{start}, {stop}) of pass {pass_index} are outside {self.passes} passes "
                f"of {self.len} samples"
            )
        return samples_at(self.len, self.shuffle, self.seed, pass_index, start, stop)


@final
class Job:
    """What is trained, how, and on what.

    Args:
        parameters: Names -> arrays, the initial values, or what numpy reads as arrays (converted
            once). Names are flat: a dict of dicts is refused, write ``layer1.w``. float32 inside;
            float64, float16 and bfloat16 are converted, integers and masked arrays refused.
        optimizer: What a shard does with a gradient, for example ``dp.Adagrad(lr=0.05)``. Where
            the policy has replicas train by themselves (``dp.DiLoCo``, say), what a replica does
            with one; shards have an optimizer of the policy's, and None leaves the steps to the
            replica function (``Replica.step``).
        policy: When replicas push and fetch, and how pushes combine; one of ours, or of a class of
            the job file's own, or one after the other: ``dp.Phases`` (docs/policies.md). None:
            ``dp.Downpour()``.
        data: The samples, or None when the replica function finds its own work.
        name: Of the run folder, [A-Za-z0-9._-], 1 to 64 characters. None: the job file's name.
        wire_dtype: What gradients travel as: float32, float16 or bfloat16 (half the bytes; float16
            is finer and ends at 65504, bfloat16 reaches as far as float32), or float64.
        max_norm: The largest L2 norm of a whole push (of what is accrued, as it travels, before a
            policy's scale), above 0, or None for no bound. A replica drops a push that is larger as
            it drops NaN: counted and named, its unit given back. A shard refuses one, and each
            fragment that is larger by itself, whatever its sender said of it, and names the
            sender. So one push can move a parameter only so far; many small ones still can.
        codec: How gradients are encoded on their way, for example ``dp.Int8()``: a quarter of the
            bytes. None: they travel as they are, or as the policy says if it brings a codec. It
            encodes float32 and has a wire dtype of its own, so it goes with the default one only.
        on_error: What becomes of the job when ``Limits.unit_failures_max`` tries at one unit of
            its work have failed, wherever it was lent: the replica function raised, or a gradient
            was dropped as NaN or too large, or refused by a shard.
            "stop": it ends as failed, its parameters are kept. "skip": the unit is set aside and
            named in the report with its samples and the traceback, and the job goes on.

    Attributes:
        layout: The parameters' names, shapes and places.

    Raises:
        ConfigError: a setting is impossible; the message names it.
        UnsupportedArray: a parameter has a dtype that cannot be trained.

    Example:
        >>> from pydownpour.optimizers import SGD
        >>> Job(parameters={"w": np.zeros(3, np.float32)}, optimizer=SGD(lr=1.0)).layout.len
        3
    """

    def __init__(
        self,
        *,
        parameters: Mapping[str, Any],
        optimizer: Part | None = None,
        policy: Policy | Phases | None = None,
        data: Work | None = None,
        name: str | None = None,
        wire_dtype: str = "float32",
        max_norm: float | None = None,
        codec: Codec | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self._parameters: dict[str, NDArray[Any]] | None = arrays_of(parameters)
        self.layout = Layout.of(self._parameters)
        _check_size(self.layout)
        self.optimizer = None if optimizer is None else _checked_optimizer(optimizer)
        self.data = _checked(data, Work, "data", "dp.Work(len(x))")
        self.policy: Policy | Phases = _checked_policy(policy, self.optimizer, self.data)
        outer = phases_of(self.policy).outer
        shard_optimizer = self.optimizer if outer is None else outer
        assert shard_optimizer is not None  # a policy that pushes gradients was checked for one
        self.shard_optimizer: Part = shard_optimizer
        """What shards do with what comes: the optimizer, or the policy's with deltas."""
        self.name = "job" if name is None else _checked_name(name)
        self.named = name is not None
        """False while the name is only the default, which a job file's name replaces."""
        if wire_dtype not in WIRE_DTYPES:
            known = ", ".join(WIRE_DTYPES)
            raise ConfigError(f"wire_dtype={wire_dtype!r}: unknown; choose one of {known}")
        self.wire_dtype = wire_dtype
        self.max_norm = None if max_norm is None else _checked_norm(max_norm)
        self.codec = _checked_codec(codec, self.policy, wire_dtype)
        reduction = phases_of(self.policy).reduction
        if reduction is not None and (self.codec is not None or wire_dtype != "float32"):
            raise ConfigError(
                f"policy {self._policy_words()}: replicas add up float32, and so it "
                "travels: leave out codec= and wire_dtype=, or let shards add up (reduce='shards')"
            )
        if on_error not in ("stop", "skip"):
            raise ConfigError(f"on_error={on_error!r}: choose stop or skip")
        self.on_error: Literal["stop", "skip"] = on_error
        self.durability: Level = "memory"
        """What an acknowledged push survives. Shards that ship keep no journal: nothing, yet."""
        self._train: Callable[..., Any] | None = None
        self._evaluation: Callable[..., Any] | None = None

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """The initial values.

        Raises:
            ClosedError: they were let go (:meth:`forget_parameters`).
        """
        if self._parameters is None:
            raise ClosedError(
                f"job {self.name!r} no longer has its initial parameters: the coordinator lets "
                "them go when every shard has its own. job.layout has their names and shapes; "
                "keep the arrays in a variable of yours if you need them later"
            )
        return self._parameters

    def forget_parameters(self) -> None:
        """Let the initial values go: their memory is free if nobody else has them."""
        self._parameters = None

    def without_evaluation(self) -> Job:
        """The same job, and nobody judges its parameters."""
        unjudged = copy.copy(self)
        unjudged._evaluation = None
        return unjudged

    def replica(self, function: F) -> F:
        """Decorator: this function trains. It gets a Replica and is returned unchanged.

        ``async def`` runs on the replica's event loop, a plain ``def`` in a thread of its own.

        Raises:
            ConfigError: not a function, or the job has one already.
        """
        self._train = _first(function, self._train, "replica")
        return function

    def evaluate(self, function: F) -> F:
        """Decorator: called with the parameters after each pass and at the end.

        It gets a dict of arrays, each in its declared dtype, and returns a number or a dict of
        numbers ("accuracy" and "loss" are shown first). It runs in the coordinator, beside the
        training, in a thread (an ``async def`` on a loop of its own there), and is returned
        unchanged.

        Raises:
            ConfigError: not a function, or the job has one already.
        """
        self._evaluation = _first(function, self._evaluation, "evaluate")
        return function

    @property
    def train(self) -> Callable[[Any], Awaitable[None] | None]:
        """The replica function.

        Raises:
            ConfigError: there is none.
        """
        if self._train is None:
            raise ConfigError(
                f"job {self.name!r} comes from a job file without a replica function; put "
                "@job.replica above the function that trains: async def train(replica): ..."
            )
        return self._train

    @property
    def evaluation(self) -> Callable[[dict[str, NDArray[Any]]], Any] | None:
        """The function :meth:`evaluate` was given, or None."""
        return self._evaluation

    def _policy_words(self) -> str:
        return ", then ".join(policy.name for policy in phases_of(self.policy).policies)

    def _optimizer_words(self) -> str:
        return "no optimizer" if self.optimizer is None else self.optimizer.describe()

    def __repr__(self) -> str:
        return (
            f"<Job {self.name!r}: {self.layout.len} parameters in {len(self.layout.arrays)} "
            f"arrays, {self._optimizer_words()}, policy {self._policy_words()}, data {self.data}>"
        )


def _check_size(layout: Layout) -> None:
    """What will have to travel and to be written is measured now, not when it has to."""
    size = len(messages.encode(JobLayout(arrays=layout.entries())))
    if size > limits.LAYOUT_SIZE_MAX:
        raise ConfigError(
            f"the names, shapes and dtypes of {len(layout.arrays)} parameter arrays are {size} "
            f"bytes, the limit is {limits.LAYOUT_SIZE_MAX} (LAYOUT_SIZE_MAX); use shorter names, "
            "or pack small arrays together"
        )
    safetensors.check_layout(layout)


def _checked_policy(
    policy: Policy | Phases | None, optimizer: Part | None, data: Work | None
) -> Policy | Phases:
    """Each of its phases, as every process will build it."""
    if not isinstance(policy, Phases):
        _checked(policy, Policy, "policy", "dp.Downpour()")
    declared = policy or Downpour()
    phases = phases_of(declared)
    for one in phases.policies:
        check_policy(one)
        if optimizer is None and one.outer() is None:
            raise ConfigError(
                f"policy {one.name} pushes gradients, and the job has no optimizer= for them, such "
                "as dp.SGD(lr=0.1)"
            )
        check_together([] if optimizer is None else optimizer.parts(), one)
    phases.classes()
    if data is not None and phases.until and phases.until[-1] >= data.samples:
        raise ConfigError(
            f"policy: the last phase begins after {phases.until[-1]} samples, and data={data} has "
            f"{data.samples} in all"
        )
    return declared


def _checked_optimizer(optimizer: Part) -> Part:
    if not isinstance(optimizer, Part):
        raise ConfigError(f"optimizer={optimizer!r} must be one of ours, such as dp.SGD(lr=0.1)")
    if not optimizer.is_rule:
        raise ConfigError(
            f"optimizer={optimizer.describe()} only shapes the gradient; put it before a rule: "
            "dp.chain(..., dp.SGD(lr=0.1))"
        )
    _core.Optimizer(optimizer.parts())  # what shards cannot compile is said here, not there
    return optimizer


def _checked_norm(max_norm: float) -> float:
    most = limits.NORM_MAX
    return config.real(
        "max_norm", max_norm, lambda x: 0 < x <= most,
        f"choose above 0 and up to {most:g} (NORM_MAX), or None for no bound",
    )  # fmt: skip


T = TypeVar("T")


def _checked(value: T | None, kind: type[Any], field: str, example: str) -> T | None:
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{field}={value!r} must be a {kind.__name__}, for example {example}")
    return value


def _checked_codec(codec: Codec | None, policy: Policy | Phases, wire_dtype: str) -> Codec | None:
    """The job's, or the one that its policy brings."""
    _checked(codec, Codec, "codec", "dp.Int8()")
    bringing = [one for one in phases_of(policy).policies if one.codec() is not None]
    brought = bringing[0].codec() if bringing else None
    for one in bringing:
        check_codec(brought, one)
    if codec is not None and brought is not None:
        raise ConfigError(
            f"codec={codec.describe()}, but policy {bringing[0].name} brings {brought.describe()}; "
            "leave codec= out, or choose another policy"
        )
    codec = codec or brought
    if codec is not None and wire_dtype != "float32":
        raise ConfigError(
            f"codec={codec.describe()} decides itself what travels, and wire_dtype={wire_dtype!r} "
            "would not be used; choose one of the two"
        )
    compiled(None if codec is None else codec.entry())
    return codec


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name={name!r} must be 1 to 64 of the characters A-Z a-z 0-9 . _ - (it names a folder)"
        )
    return name


def _first(function: F, present: Callable[..., Any] | None, what: str) -> F:
    if not callable(function):
        raise ConfigError(f"@job.{what} belongs above a function, not {function!r}")
    if present is not None:
        raise ConfigError(
            f"the job has its {what} function already ({getattr(present, '__name__', present)!r}); "
            f"one @job.{what} is enough"
        )
    return function
