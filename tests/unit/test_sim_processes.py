"""Simulated processes: what a crash, a pause and an end leave, and what their peers see."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from pydownpour.net import process
from pydownpour.sim.machines.process import ProcessState
from pydownpour.sim.world.processes import UNWIND_S
from tests.fakes.network import LATENCY_S, code
from tests.fakes.processes import World


@pytest.fixture
def world() -> Iterator[World]:
    with contextlib.closing(World()) as one:
        yield one


def test_a_main_that_ends_is_told_and_what_it_left_is_cancelled(world: World) -> None:
    left: list[asyncio.Task[None]] = []

    async def main() -> None:
        left.append(asyncio.create_task(world.ticks()))
        await asyncio.sleep(1.5)
        assert (process.host_name(), process.pid()) == ("here", 1001)
        assert process.rss_bytes() == process.rss_peak_bytes()

    one = world.start(main)
    assert world.processes.live == {"one": one}
    assert list(world.processes.alive) == [one]
    world.wait()
    assert world.exits == [("one", None)]
    assert world.seen == ["tick 0", "tick 1", "finally"]
    assert left[0].cancelled()
    assert one.state is ProcessState.DEAD
    assert (world.processes.alive, world.processes.live) == ({}, {})
    assert world.noted("start", "exit") == ["start one", "exit one"]
    world.start(lambda: world.net.open("nowhere"), "two")
    world.wait()
    assert (world.exits[1][0], type(world.exits[1][1])) == ("two", socket.gaierror)


def test_a_killed_process_runs_nothing_from_then_on(world: World) -> None:
    one = world.start(world.ticks)
    other = world.start(world.ticks, "other")
    one.context.run(world.loop.call_later, 2.0, world.seen.append, "timer")
    world.wait(1.5)
    world.seen.clear()
    world.processes.kill(one)
    world.processes.kill(one)
    world.processes.kill(other, silently=True)
    one.context.run(world.loop.call_soon, world.seen.append, "callback")
    world.wait()
    world.processes.terminate(one)
    world.processes.pause(one)
    world.processes.resume(one)
    world.wait()
    assert (world.seen, world.exits) == ([], [])
    assert world.noted("kill", "power cut", "exit") == ["kill one", "power cut other"]
    assert one.state is ProcessState.DEAD
    assert world.processes.graveyard == [one, other]


def test_peers_of_a_killed_process_see_a_reset(world: World) -> None:
    server = world.connected()
    world.client.transport.write(b"on its way")
    world.wait(0.0)
    killed = world.loop.now
    world.processes.kill(server)
    world.wait()
    assert world.client.told == [(killed + LATENCY_S, "ECONNRESET")]
    assert (world.server.got, world.server.told) == (b"", [])  # it knows nothing any more
    again = world.start(lambda: world.net.open(), "again")
    world.wait()
    assert again.state is ProcessState.DEAD
    assert code(world.exits[0][1]) == "ECONNREFUSED"
    world.loop.run_until_complete(world.processes.unwind())
    assert world.server.words == ["lost"]  # frames that wait for it must end


def test_peers_of_a_process_without_power_see_nothing_until_its_host_answers(world: World) -> None:
    server = world.connected()
    world.processes.kill(server, silently=True)
    world.client.transport.write(b"into the dark")
    world.wait()
    assert world.client.told == []
    second = world.start(lambda: world.net.open(), "second")
    world.wait()
    assert second.state is ProcessState.RUNNING  # it knocks and nobody answers
    world.start(world.serve, "server", world.other)
    world.wait()
    assert world.exits == [("second", None)]
    assert world.client.words == ["ECONNRESET"]  # its kernel had sent the bytes again and again


def test_a_peer_that_sent_nothing_learns_of_a_power_cut_when_it_does(world: World) -> None:
    server = world.connected()
    world.processes.kill(server, silently=True)
    world.start(world.serve, "server", world.other)
    world.wait()
    assert world.client.told == []
    sent = world.loop.now
    world.client.transport.write(b"hello?")
    world.wait()
    ((at, word),) = world.client.told
    assert word == "ECONNRESET"
    assert at == sent + 2 * LATENCY_S


def test_a_paused_process_does_everything_later_in_order(world: World) -> None:
    server = world.connected()
    world.processes.pause(server)
    world.processes.pause(server)
    for number in range(3):
        world.client.transport.write(b"%d" % number)
        server.context.run(world.loop.call_soon, world.seen.append, f"callback {number}")
        server.context.run(world.loop.call_later, 0.5, world.seen.append, f"timer {number}")
        world.wait(1.0)
    world.client.transport.close()
    world.wait()
    assert (world.seen, world.server.pieces, world.server.told) == ([], [], [])
    resumed = world.loop.now
    world.processes.resume(server)
    world.processes.resume(server)
    world.wait()
    kinds = [f"{kind} {number}" for number in range(3) for kind in ("callback", "timer")]
    assert world.seen == kinds
    assert world.server.pieces == [(resumed, b"0"), (resumed, b"1"), (resumed, b"2")]
    assert world.server.words == ["eof", "lost"]
    assert world.noted("pause", "resume") == ["pause server", "resume server"]


def test_what_a_held_callback_starts_has_begun_before_the_next_one(world: World) -> None:
    one = world.start(world.serve)
    world.wait(0.0)
    world.processes.pause(one)
    begun: list[asyncio.Task[None]] = []

    async def note(what: str) -> None:
        world.seen.append(f"task of {what}")

    def begin(what: str) -> None:
        world.seen.append(what)
        begun.append(world.loop.create_task(note(what)))

    for what in ("a", "b"):
        one.context.run(world.loop.call_soon, begin, what)
    world.wait(1.0)
    world.processes.resume(one)
    world.wait(1.0)
    assert world.seen == ["a", "task of a", "b", "task of b"]


def test_a_process_may_be_paused_again_before_all_has_run(world: World) -> None:
    one = world.start(world.serve)
    world.wait(0.0)
    world.processes.pause(one)
    soon = world.loop.call_soon
    one.context.run(soon, world.seen.append, "before")
    cancelled = one.context.run(soon, world.seen.append, "cancelled")
    one.context.run(soon, world.processes.pause, one)
    one.context.run(soon, world.seen.append, "after")
    world.wait(1.0)
    cancelled.cancel()
    world.processes.resume(one)
    world.wait(1.0)
    assert world.seen == ["before"]
    one.context.run(soon, world.seen.append, "last")
    world.wait(1.0)
    world.processes.resume(one)
    world.wait(1.0)
    assert world.seen == ["before", "after", "last"]


def test_terminate_cancels_the_main_coroutine(world: World) -> None:
    one = world.start(world.ticks)
    world.wait(0.5)
    world.processes.terminate(one)
    world.wait()
    assert world.seen == ["tick 0", "finally"]
    assert world.exits == [("one", None)]
    paused = world.start(world.ticks, "paused")
    world.processes.pause(paused)
    world.processes.terminate(paused)
    world.wait()
    assert paused.state is ProcessState.PAUSED
    world.processes.resume(paused)
    world.wait()
    assert world.exits == [("one", None), ("paused", None)]


def test_a_successor_takes_the_name_while_the_older_one_is_paused(world: World) -> None:
    older = world.start(lambda: world.ticks("older"))
    world.wait(0.5)
    world.processes.pause(older)
    younger = world.start(lambda: world.ticks("younger"))
    world.wait(1.0)
    assert world.processes.live == {"one": younger}
    assert list(world.processes.alive) == [older, younger]
    world.processes.resume(older)
    world.processes.terminate(older)
    world.wait(1.0)
    assert "older" in world.seen
    assert world.processes.live == {"one": younger}
    assert list(world.processes.alive) == [younger]
    world.processes.kill(younger)
    assert world.processes.live == {}
    assert world.processes.started == 2


def test_unwinding_ends_every_frame_that_is_left(world: World) -> None:
    async def busy() -> None:
        """Starts something more while it ends, and tries to reach somebody."""
        try:
            await world.ticks("killed")
        finally:
            child = asyncio.create_task(world.ticks("child"))
            await asyncio.sleep(0)
            with contextlib.suppress(ConnectionRefusedError):
                await world.net.open()
            child.add_done_callback(lambda _: world.seen.append("child is done"))

    killed = world.start(busy, "killed")
    lost = world.start(lambda: world.ticks("lost"), "lost")
    paused = world.start(lambda: world.ticks("paused"), "paused")
    running = world.start(lambda: world.ticks("running"), "running")
    world.wait(0.5)
    world.processes.kill(killed)
    world.processes.kill(lost, silently=True)
    world.processes.pause(paused)
    world.wait()
    ends = world.loop.now
    world.loop.run_until_complete(world.processes.unwind())
    words = sorted(word for word in world.seen if "tick" not in word)
    assert words == ["child", "child is done", "killed", "lost", "paused", "running"]
    assert world.loop.now == ends  # nobody connects any more
    assert [list(process.tasks) for process in (killed, lost, paused, running)] == [[]] * 4
    assert (world.processes.alive, world.processes.live) == ({}, {})


def test_unwinding_does_not_wait_for_ever(world: World) -> None:
    async def deaf() -> None:
        while not world.seen:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e5)

    world.start(deaf)
    world.wait(1.0)
    world.loop.run_until_complete(world.processes.unwind())
    assert world.loop.now <= 1.0 + 2 * UNWIND_S
    world.seen.append("enough")
    world.wait(2e5)
