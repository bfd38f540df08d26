"""Take part in a running job from a training loop that already exists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, final

from pydownpour.errors import ConfigError
from pydownpour.layout import Layout
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access, Tls, clean_token
from pydownpour.policy import Policy
from pydownpour.replica.membership import Membership
from pydownpour.replica.replica import BlockingReplica, Replica


def join(
    url: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    token: str | None = None,
    ca: str | None = None,
    name: str = "",
    policy: type[Policy] | Sequence[type[Policy]] = (),
    limits: Limits = DEFAULT,
) -> Joining:
    """Take part in a running job from a loop that already exists.

    ``async with dp.join(url) as replica`` gives a :class:`Replica`; a plain ``with`` gives a
    :class:`BlockingReplica`. Works in a notebook: it needs no main thread and no event loop.

    Args:
        url: The coordinator's URL.
        parameters: Arrays whose names, shapes and dtypes are checked against the job's; None takes
            the job's layout. They are neither kept nor written: the replica's copy, which begins
            with the job's values, is ``replica.parameters``. Read your model's arrays from there,
            or copy them after each step.
        token: The job's token; default the environment's PYDOWNPOUR_TOKEN.
        ca: PEM file of the authority that signed the job's TLS certificates.
        name: For people; default host and process.
        policy: The class of the job's policy, if it is one of the job file's own; of several
            phases all such classes.
        limits: What the replica waits for and keeps at most.

    Raises:
        LayoutMismatch: the parameters differ from the job's; the message names the first array.
        AuthError, ConnectFailed, ConfigError: at entry.
    """
    if not isinstance(url, str):
        raise ConfigError(f"url={url!r} must be what the coordinator printed, http://...")
    given = token if token is not None else os.environ.get("PYDOWNPOUR_TOKEN", "")
    access = Access(token=clean_token(given, "the token") or None, tls=Tls(ca=ca) if ca else None)
    layout = Layout.of(parameters) if parameters is not None else None
    policies = (policy,) if isinstance(policy, type) else tuple(policy)
    return Joining(Membership(url, layout, access, policies=policies, name=name, limits=limits))


@final
class Joining:
    """A membership with a face: an async and a plain context manager, for one use each.

    Made by :func:`join`. A block that ends well pushes what is accrued before it leaves.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def __aenter__(self) -> Replica:
        self._replica = Replica(await self._membership.open())
        return self._replica

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None and not self._membership.is_forked:
                await self._replica.flush()
        finally:
            await self._membership.leave(error)

    def __enter__(self) -> BlockingReplica:
        self._blocking = BlockingReplica(self._membership.open_blocking())
        return self._blocking

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None and not self._membership.is_forked:
                self._blocking.flush()
        finally:
            self._membership.leave_blocking(error)
