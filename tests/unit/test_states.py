"""States are data: the tables are whole, the code goes every way they list and no other."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from pydownpour import limits
from pydownpour.coordinator.job_state import JOB
from pydownpour.coordinator.membership import MEMBER, Member
from pydownpour.coordinator.places import PLACE, Place
from pydownpour.coordinator.units import UNIT, Lease, OpenPass
from pydownpour.errors import InternalError
from pydownpour.job import Work
from pydownpour.shard.state import SHARD
from pydownpour.states import State, Table
from pydownpour.wire.messages import ShardEnded, ShardStats
from tests.fakes.coordination import Cast, make_job
from tests.simulation.test_directed import small_world

ROOT = Path(__file__).resolve().parents[2]
TABLES: tuple[Table[Any], ...] = (JOB, PLACE, SHARD, MEMBER, UNIT)
Change: TypeAlias = tuple[str, str, str]
"""(thing, from, to)"""
LISTED: frozenset[Change] = frozenset(
    (table.thing, old, new) for table in TABLES for old, new, _ in table
)


# -- the tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.thing)
def test_a_table_is_whole(table: Table[Any]) -> None:
    assert table.states[0] == table.first
    reached = {table.first}
    while more := {new for old, new, _ in table if old in reached} - reached:
        reached |= more
    assert reached == set(table.states), "each state can be reached, and none is left out"
    assert all(when and when[0].islower() and not when.endswith(".") for _, _, when in table)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.thing)
def test_what_a_table_does_not_list_is_refused_in_words(table: Table[Any]) -> None:
    for old in table.states:
        for new in table.states:
            state = State(table, old)
            if new == old:
                assert not state.become(new, "x")
            elif new in table.changes[old]:
                assert state.become(new, "x")
                assert state.now == new
            else:
                with pytest.raises(InternalError, match=f"x is {old} and cannot become {new}; "):
                    state.become(new, "x")
                assert state.now == old


def unit_in(state: str) -> OpenPass:
    """A pass of one unit that is in that state."""
    one = OpenPass(0, 1)
    if state != "fresh":
        one.become(0, "leased")
    if state == "returned":
        one.become(0, "returned", ended=LEASE)
    elif state == "done":
        one.become(0, "done")
    elif state == "aside":
        one.become(0, "aside")
    return one


LEASE = Lease(1, 1, 1, 0, 0, 1, 0.0)


def test_a_unit_s_state_is_what_its_pass_keeps_of_it() -> None:
    """Units have no object of their own: the table is obeyed by what stands for their states."""
    for old in UNIT.states:
        for new in UNIT.states:
            one = unit_in(old)
            assert one.state_of(0) == old
            if new in UNIT.changes[old]:
                one.become(0, new, ended=LEASE)
                assert one.state_of(0) == new
                assert (0 in one.returned, 0 in one.aside) == (new == "returned", new == "aside")
                assert one.done_count == (new in ("done", "aside"))
            else:
                with pytest.raises(InternalError, match=f"unit 0 of pass 1 is {old} and cannot"):
                    one.become(0, new, ended=LEASE)
                assert one.state_of(0) == old


def test_nobody_assigns_a_state() -> None:
    place, member = Place(0, 0, 1), Member(1, "r", 1, "", 0, "", "", "", 0.0)
    for thing in (place, member, Cast().job, State(JOB)):
        for name in ("state", "now"):
            if hasattr(thing, name):
                with pytest.raises(AttributeError):
                    setattr(thing, name, "live")


@pytest.mark.parametrize("name", ["service", "recorder", "evaluation", "report", "view"])
def test_who_serves_a_job_changes_it_by_its_methods_only(name: str) -> None:
    tree = ast.parse((ROOT / "pydownpour" / "coordinator" / f"{name}.py").read_text())
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            for inner in ast.walk(target):
                if isinstance(inner, ast.Attribute):
                    assert isinstance(inner.value, ast.Name)
                    assert inner.value.id == "self", (
                        f"{name}.py:{inner.lineno} assigns to another's"
                    )


# -- the page --------------------------------------------------------------------------------------


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_states", ROOT / "docs" / "make_states.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_the_tables_say() -> None:
    made = maker()
    assert [table for table, _ in made.TABLES.values()] == list(TABLES)
    assert made.PAGE.read_text() == made.page(), "run python docs/make_states.py"
    for table, file in made.TABLES.values():
        assert f'"{table.thing}"' in (ROOT / file).read_text()


# -- each listed change happens --------------------------------------------------------------------


def running(**job: Any) -> Cast:
    cast = Cast(make_job(work=Work(4, unit=4, passes=1), **job))
    cast.shards_ready()
    cast.join("a")
    return cast


def silent(cast: Cast) -> None:
    """Shard 1 is not heard any more."""
    for _ in range(20):
        cast.now += 0.25
        cast.shard_beat(0)
        for member in cast.job.members.present:
            cast.beat(member)
        cast.job.tick(cast.now)


def stopped_before_it_began() -> None:
    cast = Cast()
    cast.hello("late", index=0)
    cast.job.finish("stopped", cast.now, outcome="stopped")
    cast.pass_time(limits.DEFAULT.join_patience_s + 1)


def failed_before_it_began() -> None:
    cast = Cast()
    cast.job.fail("internal error", cast.now)


def done() -> None:
    cast = running()
    cast.finish_all(1)
    cast.job.conclude(cast.now)


def failed_at_the_end() -> None:
    cast = running()
    cast.finish_all(1)
    cast.job.fail("could not read the final parameters", cast.now)


def a_shard_s_process_ends() -> None:
    cast = running()
    cast.job.shard_ended(ShardEnded(index=1, pid=1, reason="was killed"))
    cast.job.shard_did_not_answer(1, cast.now, refused=True)
    cast.job.shard_did_not_answer(1, cast.now, refused=True)


def a_shard_is_silent_and_heard_and_given_up() -> None:
    cast = running()
    silent(cast)
    cast.shard_beat(1)
    silent(cast)
    cast.job.shard_answered(1, ShardStats(index=1, ready=True), cast.now)
    for _ in range(int(limits.DEFAULT.shard_patience_s * 4) + 1):
        cast.now += 0.25
        cast.job.tick(cast.now)


def shards_go_before_the_job_runs() -> None:
    cast = Cast()
    cast.hello("slow", index=0)
    cast.pass_time(limits.DEFAULT.join_patience_s + 1)
    cast.shards_ready()
    silent(cast)


def members_come_and_go() -> None:
    cast = running()
    for name in ("b", "c", "d"):
        cast.join(name)
    cast.leave(2)  # live -> left
    cast.join("b")  # left -> live
    cast.pass_time(limits.DEFAULT.suspect_s + 0.5, beating=(2, 3, 4))
    cast.beat(1)  # suspect -> live
    cast.pass_time(limits.DEFAULT.suspect_s + 0.5, beating=(2, 3, 4))
    cast.leave(1)  # suspect -> left
    cast.pass_time(limits.DEFAULT.dead_s + 0.5, beating=(2, 3))  # suspect -> dead
    cast.beat(4)  # dead -> live
    cast.pass_time(limits.DEFAULT.dead_s + 0.5, beating=(2, 3))
    cast.leave(4)  # dead -> left


def a_member_dies_between_two_sweeps() -> None:
    """The first sweep that looks at it finds it silent for too long already."""
    cast = running()
    for _ in range(8):
        cast.now += limits.DEFAULT.dead_s / 4
        cast.shard_beat(0)
        cast.shard_beat(1)
    cast.job.tick(cast.now)


def units_are_lent_again() -> None:
    cast = running()
    cast.join("b")
    cast.lease(1)
    cast.leave(1)  # leased -> returned
    (unit,) = cast.lease(2).units  # returned -> leased
    cast.pass_time(limits.DEFAULT.lease_s + 1)
    cast.complete(2, unit)  # returned -> done


def a_unit_fails_again_and_again() -> None:
    cast = running()
    for life in range(limits.DEFAULT.unit_failures_max):
        if life:
            cast.join("a")
        (unit,) = cast.lease(1, incarnation=life + 1).units
        cast.fail(1, "broken", unit=unit)


def a_unit_fails_while_another_has_it_too() -> None:
    cast = Cast(make_job(work=Work(4, unit=4, passes=1, backup=2.0)))
    cast.shards_ready()
    cast.join("a")
    cast.join("b")
    for life in range(limits.DEFAULT.unit_failures_max):
        if life:
            cast.join("a")
        (unit,) = cast.lease(1, incarnation=life + 1).units
        if life == limits.DEFAULT.unit_failures_max - 1:
            cast.pass_time(limits.DEFAULT.backup_blind_s + 1, beating=(1, 2))
            assert cast.lease(2).units
        cast.fail(1, "broken", unit=unit)


def a_shard_moves() -> None:
    world = small_world()
    world.loop.at(1.5, world.move_shard, 0)
    assert world.run().checks.violations == []


def a_move_is_given_up() -> None:
    """Who takes the shard over dies when the old process has begun to give it."""
    world = small_world(latency_s=0.05, pushes=40)

    def look(name: str) -> None:
        if world.serving()[0].state == "giving":
            assert world.kill_successor(name, silently=True)
        else:
            world.loop.at(world.loop.now + 0.01, look, name)

    world.loop.at(1.5, lambda: look(world.move_shard(0)))
    assert world.run().checks.violations == []


SCENES: tuple[Callable[[], None], ...] = (
    stopped_before_it_began,
    failed_before_it_began,
    done,
    failed_at_the_end,
    a_shard_s_process_ends,
    a_shard_is_silent_and_heard_and_given_up,
    shards_go_before_the_job_runs,
    members_come_and_go,
    a_member_dies_between_two_sweeps,
    units_are_lent_again,
    a_unit_fails_again_and_again,
    a_unit_fails_while_another_has_it_too,
    a_shard_moves,
    a_move_is_given_up,
)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Change]]:
    """Every change that a table allowed meanwhile."""
    changes: set[Change] = set()
    check = Table.check

    def watched(self: Table[Any], old: str, new: str, who: str) -> None:
        check(self, old, new, who)
        changes.add((self.thing, old, new))

    monkeypatch.setattr(Table, "check", watched)
    yield changes
    assert changes <= LISTED


def test_every_change_that_is_listed_happens(seen: set[Change]) -> None:
    """No table allows what the code never does."""
    for scene in SCENES:
        scene()
    assert seen == LISTED, sorted(LISTED - seen)
