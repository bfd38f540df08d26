"""The one heartbeat: how a role says that it lives, and hears how the job stands.

Only the coordinator's word ends a role: that it is fenced, or that the job is done or failed.
Whatever else goes wrong (a connection, a refusal, an answer that nobody can read, even an error of
our own) is logged and tried again. A heartbeat that was refused is sent again without its counts:
that somebody lives matters more than what it counted.

Nobody waits for a coordinator that is gone: it may be silent for ``join_patience_s``, but
where its host refuses connections no process listens any more, and the wait is short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import final

from pydownpour.errors import (
    ClosedError,
    DownpourError,
    Fenced,
    JobFailed,
    NotReady,
    TransportError,
)
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.client import Client
from pydownpour.net.waiting import Stalls, Turn
from pydownpour.wire.messages import Heartbeat, HeartbeatAnswer

log = logging.getLogger(__name__)


@final
class Heartbeats:
    """Sends them until the coordinator ends this role.

    Args:
        client: Of the coordinator; its limits are ours.
        every_s: Between two of them.
        make: Makes the next one; False asks for one without counts.
        heard: Gets each answer.
    """

    def __init__(
        self,
        client: Client,
        *,
        every_s: float,
        make: Callable[[bool], Heartbeat],
        heard: Callable[[HeartbeatAnswer], None],
    ) -> None:
        self._client, self._every_s = client, every_s
        self._make, self._heard = make, heard
        self._limits = client.limits
        self._patience = Patience(client.url, client.limits)
        self._turn = Turn(client.limits)
        self._with_counts = True
        self._logged = ""
        self._asked: list[asyncio.Future[None]] = []
        """Who waits for an answer to a heartbeat that is still to be sent."""
        self._rest: asyncio.Future[None] | None = None
        """The pause until the next one, while it lasts."""

    def hurry(self) -> None:
        """Send the next one now: there is something to hear."""
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    async def next_answer(self) -> None:
        """Send one now, or as soon as the one under way is answered, and wait for its answer."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self.hurry()
        await asked

    async def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._rest = loop.create_future()
        timer = loop.call_later(seconds, self.hurry)
        try:
            await self._rest
        finally:
            timer.cancel()
            self._rest = None

    async def run(self) -> HeartbeatAnswer:
        """Returns the verdict: the first answer that says fenced, done or failed.

        Raises:
            Fenced, JobFailed, ClosedError: the same, as the error the coordinator answered with.
            JobFailed: nobody waits for it any longer.
            ClosedError: it is gone, and was finishing the job when it was last heard.
        """
        loop = asyncio.get_running_loop()
        self._patience.heard(loop.time())
        step_s = self._every_s + self._limits.heartbeat_timeout_s
        self._stalls = Stalls(loop.time(), step_s, self._limits.stall_s)
        while True:
            sent_at = loop.time()
            asked, self._asked = self._asked, []
            answer = await self._send()
            if answer is None:
                self._asked += asked
            else:
                self._stalls.look(loop.time())
                self._patience.heard(loop.time(), state=answer.state)
                self._heard(answer)
                for one in asked:
                    if not one.done():
                        one.set_result(None)
                if answer.fenced or answer.state in ("done", "failed"):
                    return answer
            next_in_s = max(sent_at + self._every_s - loop.time(), self._limits.backoff_min_s)
            if self._asked:
                next_in_s = self._limits.backoff_min_s
            await self._pause(next_in_s)

    async def _send(self) -> HeartbeatAnswer | None:
        loop = asyncio.get_running_loop()
        with_counts, self._with_counts = self._with_counts, True
        try:
            return await self._client.post(
                "/v1/heartbeat",
                self._make(with_counts),
                HeartbeatAnswer,
                timeout_s=self._limits.heartbeat_timeout_s,
            )
        except (Fenced, JobFailed, ClosedError):
            raise
        except (TransportError, NotReady) as error:
            failure: Exception = error
            self._log(logging.INFO, failure)
        except DownpourError as error:
            failure = error
            self._with_counts = False
            self._log(logging.WARNING, failure)
        except Exception as error:
            failure = error
            self._with_counts = False
            self._log(logging.ERROR, failure)
        self._patience.forgive(self._stalls.look(loop.time()))
        if (spent := self._patience.spent(failure, loop.time())) is not None:
            raise spent from failure
        if self._turn.is_mine(self._patience.heard_at, loop.time()):
            log.warning("waiting for the coordinator at %s: %s", self._client.url, failure)
        return None

    def _log(self, level: int, error: Exception) -> None:
        """Once for the same words: a heartbeat comes twice a second."""
        words = f"{type(error).__name__}: {error}"
        if words != self._logged:
            self._logged = words
            unforeseen = error if level == logging.ERROR else None
            log.log(level, "a heartbeat failed, tried again: %s", words, exc_info=unforeseen)


@final
class Patience:
    """For how long a coordinator that does not answer is waited for. Pure: told the time.

    Args:
        url: Of the coordinator, for words.
        limits: ``join_patience_s``, ``coordinator_refused_s``, ``finished_refused_s``.
    """

    def __init__(self, url: str, limits: Limits = DEFAULT) -> None:
        self._url, self._limits = url, limits
        self.heard_at = 0.0
        """When it last answered."""
        self._refused_since: float | None = None
        self._was_finishing = False

    def heard(self, now: float, *, state: str = "") -> None:
        """It answered, and said how the job stands."""
        self.heard_at, self._refused_since = now, None
        self._was_finishing = state == "evaluating"

    def forgive(self, seconds: float) -> None:
        """We ourselves stood still for so long."""
        if seconds:
            self.heard_at += seconds
            self._refused_since = None

    def spent(self, error: Exception, now: float) -> DownpourError | None:
        """It did not answer, for this reason: how to end, None to go on."""
        if not getattr(error, "refused", False):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        silent_s = now - self.heard_at
        if silent_s > self._limits.join_patience_s:
            return JobFailed(
                f"no answer from the coordinator at {self._url} for {silent_s:.0f} s, the limit "
                f"is {self._limits.join_patience_s:g} s (join_patience_s): {error}"
            )
        if self._refused_since is None:
            return None
        refused_s = now - self._refused_since
        if self._was_finishing and refused_s >= self._limits.finished_refused_s:
            return ClosedError(
                f"the coordinator at {self._url} was finishing the job and is gone; its report and "
                "run folder say how the job ended"
            )
        if refused_s >= self._limits.coordinator_refused_s:
            return JobFailed(
                f"the coordinator at {self._url} is gone: nobody has listened there for "
                f"{refused_s:.0f} s (coordinator_refused_s)"
            )
        return None
