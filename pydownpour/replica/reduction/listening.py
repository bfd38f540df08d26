"""Where a replica listens for others that it reduces with."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Final, final
from urllib.parse import urlsplit

from pydownpour.net.access import Access, Bind, check_not_plain, is_loopback
from pydownpour.net.server import Route, Server, UpgradeRoute
from pydownpour.replica.coordination import Coordination


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Listening:
    """Looked at only if the job's policy reduces among replicas.

    Attributes:
        bind: Where to listen. None: on loopback and a port of the system's choice if that is
            where the coordinator is, and nowhere otherwise.
        advertise: What others shall call, if it is not that.
    """

    bind: Bind | None = None
    advertise: str = ""

    async def begin(
        self,
        stack: contextlib.AsyncExitStack,
        routes: Sequence[Route | UpgradeRoute],
        access: Access,
        coordination: Coordination,
    ) -> str:
        """Listen until the stack is closed; the URL for others, "" if there is none.

        A job of https has no member that listens without a certificate of its own.

        Raises:
            ConfigError: it cannot listen there.
        """
        near = urlsplit(coordination.url)
        bind = self.bind
        if bind is None:
            secret = near.scheme == "https" and not (access.tls and access.tls.cert)
            if secret or not is_loopback(near.hostname or ""):
                return ""
            bind = Bind("127.0.0.1", 0)
        server = Server(
            routes, bind=bind, access=access, name="replica", advertise=self.advertise,
            limits=coordination.limits,
        )  # fmt: skip
        await stack.enter_async_context(server)
        url = self.advertise or server.url
        check_not_plain(coordination.url, url, "this replica")
        return url


NOWHERE: Final = Listening()
"""Where the coordinator is on this machine on loopback, else nowhere."""
