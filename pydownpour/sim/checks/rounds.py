"""What rounds promise: whole, in order where that is asked for, waited for; or full, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import final

from pydownpour.policy import POLICIES, PushInfo, from_wire
from pydownpour.policy.averaging import Averaging
from pydownpour.policy.hard_sync import HardSync
from pydownpour.policy.pieces.combine import LATE_PATIENCE_S
from pydownpour.policy.softsync import Softsync
from pydownpour.replica.pushes import Push
from pydownpour.shard.rounds import Event
from pydownpour.shard.state import Shard
from pydownpour.sim.checks.base import Check, Watched, one_policy
from pydownpour.sim.checks.oracle import Life


def _is_in_rounds(name: object) -> bool:
    """A policy of ours whose rounds are of every live replica."""
    return issubclass(POLICIES.get(str(name), Check), HardSync | Averaging)


@final
class RoundsAreWhole(Check):
    """A closed round has a gradient of every replica that was live, and nobody goes on before.

    Or a delta of each, where replicas train by themselves. From books of its own, of what shards
    and replicas tell observers. Where the policy changes, a round ends with it; and while replicas
    and shards obey different versions nobody need wait.
    """

    name = "rounds are whole"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._given: dict[int, set[int]] = {}
        """By shard, whichever process has it: a round goes on where it moves."""
        self._late: dict[int, set[int]] = {}
        """Those whose gradient for an earlier round is in the open one: what they owe to it is
        waited for, and not for ever."""
        self._changed_at: dict[int, float] = {}
        """When somebody else was last missing no more."""
        self._switching: set[Shard] = set()
        """Those that close what is open because the policy changes."""
        self._last: dict[Life, tuple[Push, int]] = {}
        """What it pushed last, and the version of the policy that everybody obeyed then, or 0."""
        self._wrong: list[str] = []

    def shard_loaded(self, shard: Shard) -> None:
        self._given.setdefault(shard.assigned.index, set())
        self._late.setdefault(shard.assigned.index, set())
        shard.rounds.on_event = lambda event, push: self._heard(shard, event, push)

    def _heard(self, shard: Shard, event: Event, push: PushInfo | None) -> None:
        settings = shard.rounds.policy.settings
        if event in ("switching", "switched"):
            self._given[shard.assigned.index].clear()
            self._late[shard.assigned.index].clear()
            self._switching.add(shard)
            if event == "switched":
                self._switching.discard(shard)
        elif _is_in_rounds(settings["name"]) and shard not in self._switching:
            policy = from_wire(settings)
            assert isinstance(policy, HardSync | Averaging)
            if policy.reduction() is None:
                self._happened(shard, policy, event, push)

    def _happened(
        self, shard: Shard, policy: HardSync | Averaging, event: Event, push: PushInfo | None
    ) -> None:
        given, open_round = self._given[shard.assigned.index], shard.rounds.round
        late = self._late[shard.assigned.index]
        missing, now = set(shard.rounds.view.live) - given, asyncio.get_running_loop().time()
        since = self._changed_at.get(shard.assigned.index, 0.0)
        if missing <= late and now - since >= LATE_PATIENCE_S - 1e-6:
            missing = set()
        where = f"shard {shard.assigned.index}, round {open_round}"
        if event == "closing":
            is_last = self.world.coordinator is None or self.world.coordinator.job.is_over
            if missing and not is_last:
                self._wrong.append(f"{where}: closed without replicas {sorted(missing)}")
            if open_round == 0 and len(given) < policy.replicas and not is_last:
                self._wrong.append(f"{where}: closed with {len(given)} of {policy.replicas}")
            given.clear()
            late.clear()
        elif push is not None and push.round < open_round and event == "arrived":
            if push.replica not in given | late:
                self._changed_at[shard.assigned.index] = now
            late.add(push.replica)
        elif push is not None and push.round >= open_round:
            before = sorted(one for one in missing if one < push.replica)
            if event == "arrived":
                if push.replica not in given | late:
                    self._changed_at[shard.assigned.index] = now
                given.add(push.replica)
            elif isinstance(policy, HardSync) and policy.ordered and before:
                self._wrong.append(f"{where}: {push.replica} was added before {before}")
            if event == "taken" and push.replica in given:
                self._wrong.append(f"{where}: a second gradient of replica {push.replica}")

    def pushed(self, life: Life, push: Push) -> None:
        """It must have waited for the round of the push before, if that is in one."""
        last, before = self._last.pop(life, (None, 0))
        version = life.trainer.ruling.version
        is_in_rounds = _is_in_rounds(life.trainer.ruling.name)
        if not is_in_rounds or life.trainer.session.reducer is not None:
            return
        obeyed = {shard.rounds.policy.version for shard in self.shards()} == {version}
        self._last[life] = push, version if obeyed else 0
        if last is None or last.reason or not (obeyed and before == version):
            return
        for index, (then, now) in enumerate(zip(last.base.rounds, push.base.rounds, strict=True)):
            if now <= then:
                self._wrong.append(f"{life} pushed twice for round {now} of shard {index}")

    def gone(self, life: Life) -> None:
        self._last.pop(life, None)

    def look(self) -> Iterator[str]:
        yield from self._wrong
        self._wrong.clear()


@final
class SharesAreFull(Check):
    """Softsync's rounds are closed when they have their share of the replicas, and not before."""

    name = "shares are full"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        policy = one_policy(watched.world)
        self._policy = policy if isinstance(policy, Softsync) else None
        self._here: dict[int, int] = {}
        """By shard, whichever process has it: gradients of the open round."""
        self._wrong: list[str] = []

    def shard_loaded(self, shard: Shard) -> None:
        if self._policy is not None:
            self._here.setdefault(shard.assigned.index, 0)
            shard.rounds.on_event = lambda event, push: self._happened(shard, event, push)

    def _share(self, shard: Shard) -> int:
        assert self._policy is not None
        replicas = self._policy.replicas or len(shard.rounds.view.live)
        return max(1, replicas // self._policy.n) if shard.rounds.view.live else 1

    def _happened(self, shard: Shard, event: Event, push: PushInfo | None) -> None:
        index = shard.assigned.index
        if event == "arrived" and not shard.rounds.is_closing:  # else it is that round's
            self._here[index] += 1
        elif event == "closing":
            share, here = self._share(shard), self._here[index]
            is_last = self.world.coordinator is None or self.world.coordinator.job.is_over
            if here < share and not is_last:
                self._wrong.append(
                    f"shard {index}, round {shard.rounds.round}: closed with {here} of {share}"
                )
            self._here[index] = 0

    def look(self) -> Iterator[str]:
        yield from self._wrong
        self._wrong.clear()
        for shard in self.shards() if self._policy is not None else ():
            share, here = self._share(shard), self._here[shard.assigned.index]
            # Before the coordinator's first word nothing is closed, nor where the shard moves.
            knows = shard.rounds.live_version and shard.state == "serving"
            if knows and here >= share and not shard.rounds.is_closing:
                where = f"shard {shard.assigned.index}, round {shard.rounds.round}"
                yield f"{where}: open with {here} of {share}"
