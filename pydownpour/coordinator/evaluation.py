"""Evaluations: read the parameters, call the user's function, keep what it returns.

They run beside the training and never hold it up: in a thread, an ``async def`` on a loop of its
own there, so that one that computes stops nobody. While one runs, of those that became due only
the newest waits: a slow function skips passes rather than falling behind. The last evaluation of a
job is not one of these; the service calls ``evaluate`` for it on the final parameters.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, final

from pydownpour import limits
from pydownpour.coordinator.job_state import JobState
from pydownpour.errors import DownpourError
from pydownpour.layout import Flat
from pydownpour.wire.messages import EvaluationEntry


@final
class Evaluator:
    """Calls a job's evaluate function.

    Args:
        job: Where results and failures go.
        read: Reads all parameters.
        ended: Called after each evaluation beside the training.

    Lifecycle: ``run`` serves until it is cancelled; a function that runs in a thread cannot be
    interrupted, its result is then dropped.
    """

    def __init__(
        self, job: JobState, read: Callable[[], Awaitable[Flat]], ended: Callable[[], object]
    ) -> None:
        self._job, self._read, self._ended = job, read, ended
        self._due = asyncio.Event()
        self._busy = asyncio.Lock()
        self._reading: asyncio.Future[Flat] | None = None

    def request(self) -> None:
        """The parameters of this moment shall be evaluated."""
        self._due.set()

    def drop(self) -> None:
        """What has not come to the user's function is no longer wanted."""
        self._due.clear()
        if self._reading is not None:
            self._reading.cancel()

    @property
    def is_busy(self) -> bool:
        """An evaluation is reading parameters, or looking at them."""
        return self._busy.locked()

    async def run(self) -> None:
        """Evaluate whenever it is due, one at a time."""
        if self._job.declared.evaluation is None:
            return
        while True:
            await self._due.wait()
            self._due.clear()
            async with self._busy:
                await self._read_and_call(self._passes_finished())
            self._ended()

    async def _read_and_call(self, passes: int) -> None:
        """Nothing here outlives the call: no parameters are held while none are looked at."""
        task = asyncio.current_task()
        self._reading = asyncio.ensure_future(self._read())
        try:
            flat = await self._reading
        except DownpourError as error:
            self._failed(passes, f"could not read the parameters: {error}")
            return
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            return  # dropped
        finally:
            self._reading = None
        await self._call(flat, passes)

    async def evaluate(self, flat: Flat) -> None:
        """Evaluate these parameters, once a running evaluation has ended."""
        if self._job.declared.evaluation is None:
            return
        async with self._busy:
            await self._call(flat, self._passes_finished())

    def _passes_finished(self) -> int:
        ledger = self._job.ledger
        return ledger.passes_finished if ledger is not None else 0

    async def _call(self, flat: Flat, passes: int) -> None:
        job = self._job
        loop = asyncio.get_running_loop()
        samples = job.samples_done
        function = job.declared.evaluation
        assert function is not None
        try:
            result = await loop.run_in_executor(
                None, lambda: _result(function, job.declared.layout.declared(flat))
            )
            metrics, dropped = metrics_of(result)
        except (Exception, SystemExit) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._failed(
                passes, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            )
            return
        now = loop.time()
        if dropped:
            self._failed(passes, f"{', '.join(dropped)} not finite")
        else:
            job.note("evaluation", "")
        at_s = round(now - job.started, 3)
        job.evaluated(
            EvaluationEntry(passes=passes, at_s=at_s, samples=samples, metrics=metrics), now
        )

    def _failed(self, passes: int, words: str) -> None:
        self._job.evaluation_failed(passes, words, asyncio.get_running_loop().time())


def _result(function: Callable[[dict[str, Any]], Any], arrays: dict[str, Any]) -> Any:
    """What the user's function returns, whichever kind of function it is."""
    result = function(arrays)
    return _awaited(result) if inspect.iscoroutine(result) else result


def _awaited(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end on a loop of its own.

    In a simulation "a thread" is the loop's own, where no second loop can run: then in one more
    thread, which is waited for, so that the run stays repeatable.
    """
    if asyncio._get_running_loop() is None:
        return asyncio.run(work)
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(run,), name="pydownpour-evaluation"
    )
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def metrics_of(result: Any) -> tuple[dict[str, float], list[str]]:
    """What an evaluate function returned, as finite numbers by name, and which were not finite.

    A lone number is called "accuracy".

    Raises:
        TypeError: neither a number nor a mapping from names to numbers.
    """
    named = result if isinstance(result, Mapping) else {"accuracy": result}
    if len(named) > limits.METRICS_MAX:
        raise TypeError(
            f"evaluate returned {len(named)} numbers, the limit is {limits.METRICS_MAX} "
            "(METRICS_MAX)"
        )
    metrics: dict[str, float] = {}
    dropped: list[str] = []
    for name, value in named.items():
        if not isinstance(name, str) or isinstance(value, str | bytes | bytearray):
            raise TypeError(f"evaluate returned {name!r}: {value!r}; names and numbers are needed")
        if len(name) > limits.LABEL_LEN_MAX:
            raise TypeError(
                f"evaluate returned a name of {len(name)} characters, the limit is "
                f"{limits.LABEL_LEN_MAX} (LABEL_LEN_MAX)"
            )
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"evaluate returned {type(value).__name__} for {name!r}; return a number, or a "
                "dict of numbers"
            ) from error
        if math.isfinite(number):
            metrics[name] = number
        else:
            dropped.append(f"{name}={number}")
    return metrics, dropped
