"""The event loop on virtual time: what runs when, on whose clock, and when a run is given up."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import random
import sys
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydownpour.errors import BudgetSpent, SimulationStuck
from pydownpour.sim.loop.handles import CANCELLED_KEPT, Timer, Timers
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.machines.host import Host, LinkModel
from pydownpour.sim.machines.process import ProcessState, SimProcess

DAY_S = 86_400.0


def made(*, events_max: int = 100_000, virtual_s_max: float = 1e6) -> contextlib.closing[SimLoop]:
    return contextlib.closing(SimLoop(events_max=events_max, virtual_s_max=virtual_s_max))


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    with made() as one:
        yield one


def process(offset_s: float = 0.0) -> SimProcess:
    host = Host("host", "10.0.0.1", LinkModel())
    host.clock_offset_s = offset_s
    return SimProcess("process", 1, host)


def wait(loop: SimLoop, seconds: float) -> None:
    loop.run_until_complete(asyncio.sleep(seconds))


def test_time_stands_still_for_callbacks_and_jumps_to_the_next_timer(loop: SimLoop) -> None:
    seen: list[tuple[str, float]] = []

    def note(what: str, again: int = 0) -> None:
        seen.append((what, loop.time()))
        if again:
            loop.call_soon(note, what, again - 1)

    loop.call_later(5.0, note, "later")
    loop.at(2.5, note, "at")
    loop.at(0.0, note, "due")  # and yet only when nobody is ready
    loop.call_soon(note, "soon", 3)
    wait(loop, 7.0)
    assert seen == [("soon", 0.0)] * 4 + [("due", 0.0), ("at", 2.5), ("later", 5.0)]
    loop.at(1.0, note, "past")
    wait(loop, 1.0)
    assert seen[-1] == ("past", 7.0)  # time never goes back
    assert loop.now == 8.0


def test_ready_callbacks_and_equal_timers_run_in_the_order_they_were_made(loop: SimLoop) -> None:
    seen: list[object] = []
    for number in range(50):
        loop.at(9.0 if number == 25 else 1.0, seen.append, number)
    loop.call_soon(lambda: loop.call_soon(seen.append, "child"))  # behind what is ready already
    loop.call_soon(seen.append, "second")
    loop.call_soon(seen.append, "cancelled").cancel()
    loop.call_soon(seen.append, "third")
    wait(loop, 1.0)
    assert seen == ["second", "third", "child", *(n for n in range(50) if n != 25)]


def test_a_moment_s_end_is_told_and_may_bring_more(loop: SimLoop) -> None:
    seen: list[str] = []

    def end_of_moment() -> None:
        seen.append(f"end {loop.now:g}")
        if len(seen) < 4:
            loop.call_soon(seen.append, "more")

    loop.on_instant = end_of_moment
    loop.at(1.0, seen.append, "timer")
    wait(loop, 2.0)
    assert seen == ["end 0", "more", "end 0", "more", "end 0", "timer", "end 1"]


def test_a_cancelled_timer_neither_runs_nor_moves_time(loop: SimLoop) -> None:
    seen: list[str] = []
    loop.at(1.0, seen.append, "never").cancel()
    late = loop.at(2.0, seen.append, "late")
    loop.at(1.5, late.cancel)
    due: list[Timer] = []
    loop.at(3.0, lambda: due[0].cancel())
    due.append(loop.at(3.0, seen.append, "same moment"))
    moments: list[float] = []
    loop.on_instant = lambda: moments.append(loop.now)
    wait(loop, 4.0)
    assert seen == []
    assert moments == [0.0, 1.5, 3.0]


def test_cancelled_timers_are_swept_out_and_the_others_stay(loop: SimLoop) -> None:
    """A time limit that is renewed with each message must not fill the memory."""
    seen: list[int] = []
    cancelled: list[weakref.ref[Timer]] = []
    for number in range(10 * CANCELLED_KEPT):
        if number % 100 == 0:
            loop.at(2e3 - number, seen.append, number)
        timer = loop.at(1e4, seen.append, -1)
        timer.cancel()
        cancelled.append(weakref.ref(timer))
        del timer
        if number % CANCELLED_KEPT == 0:
            assert sum(ref() is not None for ref in cancelled) <= CANCELLED_KEPT + 1
    wait(loop, 2e3)
    assert seen == list(range(0, 10 * CANCELLED_KEPT, 100))[::-1]


def test_the_count_of_cancelled_timers_is_exact(loop: SimLoop) -> None:
    timers = Timers()
    context = contextvars.copy_context()
    one, two, three, four = (Timer(print, (), loop, context, None) for _ in range(4))
    for when, timer in ((4.0, four), (2.0, two), (3.0, three), (1.0, one)):
        timers.push(when, timer)
    one.cancel()
    one.cancel()
    three.cancel()
    assert timers.cancelled == 2
    assert timers.pop_next(0.0) == [two]
    assert timers.cancelled == 1, "the first of them is gone with that"
    two.cancel()  # it is not in there any more
    assert timers.cancelled == 1
    assert timers.pop_next(0.0) == [four]
    assert timers.cancelled == 0
    assert timers.pop_next(0.0) == []


def test_whatever_is_overdue_comes_at_once(loop: SimLoop) -> None:
    timers = Timers()
    context = contextvars.copy_context()
    one, two, three = (Timer(print, (), loop, context, None) for _ in range(3))
    for when, timer in ((1.0, one), (2.0, two), (3.0, three)):
        timers.push(when, timer)
    assert timers.pop_next(2.0) == [one, two]
    assert timers.pop_next(2.0) == [three]


def test_timers_of_any_distance_come_in_order(loop: SimLoop) -> None:
    """Beside a sorted list: near and far, before and behind the present, cancelled and swept."""
    rng, context = random.Random(3), contextvars.copy_context()
    timers, now, made = Timers(), 0.0, 0
    waiting: list[tuple[float, int, Timer]] = []
    for _ in range(5000):
        for _ in range(rng.randrange(4)):
            when = max(
                0.0, now + rng.choice((0.0, 1e-3, 0.1, 1 / 64, 1.0, 60.0)) * rng.randrange(3)
            )
            timer, made = Timer(print, (), loop, context, None), made + 1
            timers.push(when, timer)
            waiting.append((when, made, timer))
            if rng.random() < 0.5:
                rng.choice(waiting)[2].cancel()
        alive = sorted(entry for entry in waiting if not entry[2]._cancelled)
        until = max(alive[0][0], now) if alive else now
        assert timers.pop_next(now) == [timer for when, _, timer in alive if when <= until]
        waiting, now = [entry for entry in alive if entry[0] > until], until


def test_what_is_never_due_waits_for_ever(loop: SimLoop) -> None:
    """A patience of infinity is a time limit like any other, on asyncio's own loop, too."""

    async def waits() -> str:
        patience = asyncio.ensure_future(asyncio.sleep(math.inf))
        await asyncio.sleep(1.0)
        return "waits" if patience.cancel() else repr(patience.exception())

    assert loop.run_until_complete(waits()) == "waits"


def test_a_timer_costs_the_same_beside_many_that_are_far_away(loop: SimLoop) -> None:
    class Counted(float):
        compared = 0

        def __lt__(self, other: float) -> bool:
            Counted.compared += 1
            return float(self) < float(other)

    def cost(far: int) -> int:
        timers, context = Timers(), contextvars.copy_context()
        for number in range(far):
            timers.push(Counted(10 + number % 60), Timer(print, (), loop, context, None))
        Counted.compared = 0
        for number in range(1000):
            timers.push(Counted(number / 1000), Timer(print, (), loop, context, None))
            timers.push(Counted((number + 1) / 1000), Timer(print, (), loop, context, None))
            assert timers.pop_next(0.0)
        return Counted.compared

    assert cost(20_000) <= cost(200) + 100


@pytest.mark.parametrize("chain", ["callbacks", "timers", "timers at one moment"])
def test_whatever_goes_round_for_ever_spends_the_events(chain: str) -> None:
    def again(loop: SimLoop) -> None:
        if chain == "callbacks":
            loop.call_soon(again, loop)
        else:
            loop.at(loop.now + (chain == "timers"), again, loop)

    with made(events_max=500) as loop:
        again(loop)
        with pytest.raises(BudgetSpent, match=r"500 events \(--events\)"):
            wait(loop, 1e6)
        assert 500 < loop.events < 510


def test_budgets_include_their_last_event_and_moment() -> None:
    def run(events_max: int) -> int:
        with made(events_max=events_max, virtual_s_max=10.0) as loop:
            for seconds in range(10):
                loop.call_later(seconds, int)
            wait(loop, 10.0)
            return loop.events

    spent = run(100_000)
    assert run(spent) == spent
    with pytest.raises(BudgetSpent):
        run(spent - 1)
    with made(virtual_s_max=10.0) as loop:
        wait(loop, 10.0)
        with pytest.raises(BudgetSpent, match=r"10 virtual seconds \(--virtual-s\)"):
            wait(loop, 0.5)
        loop.lift_budgets()
        wait(loop, 1e7)


def test_a_run_in_which_everybody_waits_is_stuck(loop: SimLoop) -> None:
    async def wait_for_nobody() -> None:
        loop.call_later(1.0, int)
        loop.call_later(2.0, int).cancel()  # nobody is woken by it
        await loop.create_future()

    with pytest.raises(SimulationStuck, match=r"at 1\.000000 s nothing is scheduled"):
        loop.run_until_complete(wait_for_nobody())


def test_each_process_has_its_own_clock(loop: SimLoop) -> None:
    fast, slow = process(100.0), process(-50.0)
    wait(loop, 2.0)
    assert [one.context.run(loop.time) for one in (fast, slow)] == [102.0, -48.0]
    assert (loop.time(), loop.now) == (2.0, 2.0)
    seen: list[tuple[str, float]] = []
    fast.context.run(loop.call_at, 104.0, lambda: seen.append(("fast", loop.now)))
    slow.context.run(loop.call_at, -47.0, lambda: seen.append(("slow", loop.now)))
    fast.context.run(loop.at, 3.5, lambda: seen.append(("world", loop.now)))
    wait(loop, 5.0)
    assert seen == [("slow", 3.0), ("world", 3.5), ("fast", 4.0)]


@given(
    offset_s=st.floats(-DAY_S, DAY_S).map(lambda s: s / 3),
    deadlines=st.lists(st.floats(-DAY_S, DAY_S), min_size=1),
)
@example(offset_s=1.8683, deadlines=[6.44])  # 6.44 - 1.8683 + 1.8683 < 6.44
def test_no_timer_is_early_by_the_clock_that_asked(offset_s: float, deadlines: list[float]) -> None:
    """Whoever waits for a deadline would find it not reached, and ask again, for ever."""
    one = process(offset_s)
    fired: dict[float, tuple[float, float]] = {}

    def fire(loop: SimLoop, when: float) -> None:
        fired[when] = (loop.time(), loop.now)

    with made() as loop:
        for when in deadlines:
            one.context.run(loop.call_at, when, fire, loop, when)
        wait(loop, 4 * DAY_S)
    assert fired.keys() == set(deadlines)
    for when, (shown, at) in fired.items():
        assert shown >= when
        assert at <= max(0.0, when - offset_s) + 1e-9  # nor later than rounding makes it


def test_a_blocking_call_runs_at_once_and_its_charge_delays_its_answer(loop: SimLoop) -> None:
    done: list[str] = []

    def work(text: str) -> int:
        done.append(text)
        loop.charge(1.0)
        loop.charge(0.5)
        return int(text)

    async def main() -> None:
        answer = loop.run_in_executor(None, work, "1")
        assert done == ["1"]  # before anybody waits
        assert await loop.run_in_executor(None, int, "7") == 7  # nobody else is delayed
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(None, int, "x")
        assert loop.now == 0.0
        assert (await answer, loop.now) == (1, 1.5)
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(None, work, "x")
        assert loop.now == 3.0
        loop.run_in_executor(None, work, "2").cancel()
        await asyncio.sleep(10.0)

    loop.run_until_complete(main())
    assert loop.errors == []  # the answer that nobody waited for hurt nobody


def test_what_a_live_process_lets_escape_is_kept_and_the_run_goes_on(loop: SimLoop) -> None:
    seen: list[str] = []
    loop.call_soon(int, "x", context=process().context)
    loop.call_soon(seen.append, "next")
    wait(loop, 0.0)
    assert seen == ["next"]
    (error,) = loop.errors
    assert "ValueError" in error
    loop.call_later(1.0, sys.exit, 3)  # that is for whoever runs the simulation
    with pytest.raises(SystemExit):
        wait(loop, 2.0)


def test_the_garbage_of_a_dead_process_is_nobody_s_error(loop: SimLoop) -> None:
    def drop_a_failure() -> None:  # the loop is told when it is collected, which is at once
        loop.create_future().set_exception(ValueError("unseen"))

    one = process()
    one.context.run(drop_a_failure)
    assert len(loop.errors) == 1
    one.state = ProcessState.DEAD
    one.context.run(drop_a_failure)
    loop.call_soon(int, "x", context=one.context)  # does not run
    loop.call_exception_handler({"message": "something was left open"})
    wait(loop, 0.0)
    assert len(loop.errors) == 1


def test_callbacks_timers_and_tasks_belong_to_the_process_that_made_them(loop: SimLoop) -> None:
    one = process()
    seen: list[str] = []

    async def work() -> None:
        task = asyncio.create_task(asyncio.sleep(1.0))
        assert task in one.tasks
        await task
        assert task not in one.tasks
        loop.call_later(2.0, seen.append, "timer")
        loop.call_later(1.0, lambda: loop.call_soon(seen.append, "callback"))

    task = loop.create_task(work(), context=one.context.copy())
    assert list(one.tasks) == [task]
    loop.run_until_complete(task)
    # Made later than the callback, which is ready by then.
    loop.at(2.0, setattr, one, "state", ProcessState.PAUSED)
    wait(loop, 5.0)
    assert seen == []
    assert len(one.held) == 2
