"""Every error this library raises on purpose.

    DownpourError
    ├── ConfigError           (also ValueError)   you asked for something impossible
    │   └── LayoutMismatch                        the job's parameters are not yours
    ├── ProtocolError         (abstract)
    │   ├── LocalProtocolError                    our side broke the protocol
    │   └── RemoteProtocolError                   the peer did; the connection is finished
    ├── TransportError        (also OSError)
    │   ├── ConnectFailed                         nobody answered
    │   ├── UpgradeRefused                        a proxy does not let the stream through
    │   ├── PeerLost                              the connection broke; outcomes may be unknown
    │   └── DeadlineExceeded  (also TimeoutError) somebody did not answer in time
    ├── AuthError             (also PermissionError)   token missing or wrong
    │   └── OriginRefused                         called by a name or a web page we do not know
    ├── ParameterError        (also ValueError)
    │   ├── UnsupportedArray                      an array we do not take, and why
    │   ├── GradientMismatch  (also LayoutMismatch)   a gradient is not of its parameter's shape
    │   ├── NonFiniteGradient                     NaN or Inf in a gradient: refused, nothing applied
    │   └── GradientsRefused                      no push is applied any more, and why
    ├── MisuseError           (also RuntimeError) a call that would lose gradients: not awaited, ...
    ├── Fenced                                    a newer incarnation of this replica lives
    ├── WrongEpoch                                the shard is served elsewhere: see the newer map
    ├── NotReady                                  the peer is up, but waits for somebody
    ├── LimitExceeded                             a named limit of limits.py was hit; back off
    ├── TooLarge                                  something on the way refuses so large a body
    ├── JobFailed                                 the job ended without finishing, and why
    ├── SimulationStuck                           everybody in a simulation waits for somebody
    ├── BudgetSpent                               a simulation used up its events or its time
    ├── CheckpointError                           bytes on disk are not what they should be
    └── ClosedError                               used after close

    InternalError  (an Exception, not a DownpourError)   an invariant of ours broke: report it

A message says what, the numbers, and the knob to turn. ``retryable`` is part of the API: trying
the same call again may succeed.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DownpourError(Exception):
    """Base of all errors raised on purpose; catch it to catch them all."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message)
        self.details = details
        for name, value in details.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword details must survive process pools and test runners.
        return _rebuild, (type(self), str(self.args[0] if self.args else ""), self.details)


def _rebuild(kind: type[DownpourError], message: str, details: dict[str, Any]) -> DownpourError:
    return kind(message, **details)


class ConfigError(DownpourError, ValueError):
    """A setting is impossible. The message names the field and the bound; change it."""


class LayoutMismatch(ConfigError):
    """The parameters do not match the job's. The message names the first differing array."""


class ProtocolError(DownpourError):
    """Abstract: somebody broke the wire protocol."""


class LocalProtocolError(ProtocolError):
    """Our own side misused the protocol; state is unchanged. Please report it."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol forbids; the connection is finished."""


class TransportError(DownpourError, OSError):
    """The network failed. ``peer`` names whom we were talking to."""

    retryable = True


class ConnectFailed(TransportError):
    """No connection could be made. Check that the peer runs and the URL is right."""

    refused: bool = False
    """The peer's host answered that nobody listens: its process has ended, or not begun."""


class UpgradeRefused(TransportError):
    """Something on the way does not pass Upgrade on. POST and GET are used instead, by itself."""


class PeerLost(TransportError):
    """A connection broke; pushes in flight have an unknown outcome and are sent again."""


class DeadlineExceeded(TransportError, TimeoutError):
    """A peer did not answer in time. The message says who, how long, and which limit."""


class AuthError(DownpourError, PermissionError):
    """The token is missing or wrong. Pass the job's token."""


class OriginRefused(AuthError):
    """A server was called by a name it does not know, or by another site's page: --allow-host."""


class ParameterError(DownpourError, ValueError):
    """Something is wrong with an array."""


class UnsupportedArray(ParameterError):
    """An array has a dtype or layout that cannot be trained; the message says why."""


class GradientMismatch(ParameterError, LayoutMismatch):
    """Gradients do not match the job's parameters. The message names the first that differs."""


class NonFiniteGradient(ParameterError):
    """A gradient holds NaN or Inf. It was refused whole; find the batch that made it."""


class GradientsRefused(ParameterError):
    """Push after push was not applied; the message has the last reason and what to change."""


class MisuseError(DownpourError, RuntimeError):
    """A replica was used in a way that would lose or double gradients; the message says how."""


class Fenced(DownpourError):
    """A newer incarnation of this replica exists; this one must stop."""


class WrongEpoch(DownpourError):
    """Another process serves this shard, or will in a moment: look at the newest shard map again.

    Nothing is lost and nobody is at fault: what was sent is sent to the new owner, under its old
    identity. (:class:`Fenced` is the other case: not the map is old, but who asks.)
    """

    retryable = True
    entry: Any = None
    """The shard's ``ShardEntry`` in the newest map that the peer knows; None if it knows none."""


class NotReady(DownpourError):
    """The peer is up but cannot serve yet; the message says for whom it waits. Try again."""

    retryable = True


class LimitExceeded(DownpourError):
    """A named limit was reached and nothing was changed; wait and try again, or raise it."""

    retryable = True


class TooLarge(DownpourError):
    """A peer, or something before it, refuses a body of this size; a second try would not help."""


class JobFailed(DownpourError):
    """The job ended before its work was complete; the message says which process and why."""


class CheckpointError(DownpourError):
    """Stored bytes are damaged or of another job."""


class SimulationStuck(DownpourError):
    """Nothing is scheduled and nobody is ready: the job would wait for ever. Look at the trace."""


class BudgetSpent(DownpourError):
    """A simulation used more events or virtual seconds than it may: it hangs, or needs more."""


class ClosedError(DownpourError):
    """The object was closed; open a new one."""


class InternalError(Exception):
    """An invariant of this library broke. Please report it with the message and the run folder."""
