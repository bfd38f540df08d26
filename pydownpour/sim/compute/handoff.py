"""A plain function in the simulator: a real thread that runs only while the loop waits for it.

The function blocks in ``replica.step``, so it needs a stack of its own. The handoff between the two
threads keeps a run repeatable: of the loop's and the function's exactly one runs at any moment.
Every call that needs the session hands over to the loop and waits; no virtual time passes while
the function runs.

Lifecycle: a killed replica's thread waits for a turn that never comes, and its ``finally`` blocks
do not run, as after SIGKILL. When the world is torn down it is given CancelledError where it waits
and from every later call, and is joined.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import queue
import random
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final

from pydownpour.replica.portal import Portal, Work
from pydownpour.replica.replica import BlockingReplica, Replica
from pydownpour.sim.compute.cost import ComputeModel, charged_samples

if TYPE_CHECKING:
    from pydownpour.replica.work import Unit
    from pydownpour.sim.machines.host import Host

T = TypeVar("T")

UNWIND_S: Final = 5.0
"""Real seconds a function gets to end after it was told to; one that ignores it is left behind."""


@final
@dataclasses.dataclass(frozen=True)
class _Wish:
    """What the function wants of the loop."""

    work: Work | None = None
    """To be awaited."""
    call: Callable[[], object] | None = None
    """To be called."""


@final
@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What a wish came to, or the function itself."""

    value: Any = None
    error: BaseException | None = None

    def unpack(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


@final
class ThreadHandoff(Portal):
    """Runs one plain function beside the loop; the function's way to its session.

    Args:
        name: Of the thread, for debuggers.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._to_function: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._to_loop: queue.SimpleQueue[_Wish | _Outcome] = queue.SimpleQueue()
        self._is_over = False

    # -- the function's thread ---------------------------------------------------------------------

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call it on the loop's thread, now."""
        self._ask(_Wish(call=lambda: function(*arguments)))

    def call(self, work: Work) -> Any:
        """Let the loop run until it has a result."""
        return self._ask(_Wish(work=work))

    def start(self, work: Work) -> Awaitable[Any]:
        """For what still runs on the loop: just await it."""
        return work

    def _ask(self, wish: _Wish) -> Any:
        if self._is_over:
            _drop(wish)
            raise asyncio.CancelledError("the simulated process has ended")
        self._to_loop.put(wish)
        return self._to_function.get().unpack()

    def _main(self, function: Callable[[], object]) -> None:
        try:
            outcome = _Outcome(function())
        except BaseException as error:
            outcome = _Outcome(error=error)
        self._to_loop.put(outcome)

    # -- the loop's thread -------------------------------------------------------------------------

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function to its end, in the virtual time its wishes take.

        Raises:
            Whatever the function raised.
        """
        thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._main, function),
            name=self._name,
            daemon=True,
        )
        thread.start()
        turn: _Wish | _Outcome | None
        try:
            turn = self._to_loop.get()
            while isinstance(turn, _Wish):
                self._to_function.put(await _fulfilled(turn))
                turn = self._to_loop.get()
        except BaseException:
            turn = self._unwound()
            raise
        finally:
            if isinstance(turn, _Outcome):
                thread.join()
        assert isinstance(turn, _Outcome)
        return cast(T, turn.unpack())

    def _unwound(self) -> _Outcome | None:
        """Tell the function that it is over, and wait for its end; None: it ignores us."""
        self._is_over = True
        self._to_function.put(_Outcome(error=asyncio.CancelledError("the simulated process ended")))
        try:
            while isinstance(turn := self._to_loop.get(timeout=UNWIND_S), _Wish):
                _drop(turn)
        except queue.Empty:
            return None
        return turn


async def _fulfilled(wish: _Wish) -> _Outcome:
    try:
        if wish.call is not None:
            return _Outcome(wish.call())
        assert wish.work is not None
        return _Outcome(await wish.work)
    except Exception as error:
        return _Outcome(error=error)


def _drop(wish: _Wish) -> None:
    if wish.work is not None:
        wish.work.close()


@final
class ChargedBlockingReplica:
    """A blocking replica whose steps take virtual time: what a plain function gets."""

    def __init__(
        self,
        replica: BlockingReplica,
        portal: Portal,
        model: ComputeModel,
        host: Host,
        rng: random.Random,
    ) -> None:
        self._replica, self._portal = replica, portal
        self._model, self._host, self._rng = model, host, rng
        self._unit: Unit | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    def work(self) -> Iterator[Unit]:
        """As :meth:`BlockingReplica.work`."""
        for unit in self._replica.work():
            self._unit = unit
            yield unit

    def step(
        self,
        gradients: Mapping[str, Any] | None = None,
        *,
        loss: float | None = None,
        samples: int | None = None,
    ) -> None:
        """As :meth:`BlockingReplica.step`, after the time the gradient took."""
        count = charged_samples(self._unit, samples)
        self._portal.call(asyncio.sleep(self._model.seconds(count, self._host.slow, self._rng)))
        self._replica.step(gradients, loss=loss, samples=samples)


async def run_plain(
    function: Callable[[Any], object],
    replica: Replica,
    model: ComputeModel,
    host: Host,
    rng: random.Random,
) -> None:
    """Run a job's plain function as a simulated replica."""
    trainer = replica._trainer
    handoff = ThreadHandoff(f"simulated {host.name}")
    blocking = BlockingReplica(trainer)

    def main() -> None:
        function(ChargedBlockingReplica(blocking, handoff, model, host, rng))
        blocking.flush()

    with trainer.reached_by(handoff):
        await handoff.run(main)
