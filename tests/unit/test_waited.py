"""What a training loop waited for, one kind at a time."""

from __future__ import annotations

from pydownpour.replica.waited import KINDS, TurnedDown, Waited


class Story:
    """A clock that is set, and two shards."""

    def __init__(self) -> None:
        self.now = 100.0
        self.shards = [TurnedDown(), TurnedDown()]
        self.waited = Waited(lambda: self.now, self.shards)

    def seconds(self) -> dict[str, float]:
        """By kind, those that are not zero."""
        told = self.waited.by_kind()
        assert set(told) == {f"waited_{kind}_s" for kind in KINDS}
        return {name[7:-2]: seconds for name, seconds in told.items() if seconds}


def test_each_kind_has_its_own_seconds() -> None:
    story = Story()
    for kind, seconds in (("fetch", 1.0), ("round", 2.0), ("work", 4.0), ("fetch", 8.0)):
        story.waited.begins(kind)  # type: ignore[arg-type]
        story.now += seconds
        story.waited.ended()
        story.now += 50.0
    assert story.seconds() == {"fetch": 9.0, "round": 2.0, "work": 4.0}


def test_a_push_that_was_turned_down_is_told_apart_by_why() -> None:
    """At several shards at once: by the one where it took longest."""
    story = Story()
    story.shards[0].no_room_s = 7.0  # of an earlier push
    story.waited.begins("push")
    story.now += 10.0
    story.shards[0].no_room_s += 3.0
    story.shards[1].no_room_s += 1.0
    story.shards[1].not_yet_s += 2.0
    story.waited.ended()
    assert story.seconds() == {"push": 5.0, "blocks": 3.0, "round": 2.0}


def test_it_is_never_more_than_was_waited() -> None:
    """A push may have been turned down long before anybody waited for it."""
    story = Story()
    story.waited.begins("push")
    story.now += 1.0
    story.shards[0].no_room_s, story.shards[0].not_yet_s = 30.0, 30.0
    story.waited.ended()
    assert story.seconds() == {"blocks": 1.0}


def test_a_wait_that_lasts_is_told_while_it_does() -> None:
    story = Story()
    story.waited.begins("work")
    story.now += 3.0
    assert story.seconds() == {"work": 3.0}
    assert story.seconds() == {"work": 3.0}
    story.waited.ended()
    assert story.seconds() == {"work": 3.0}
