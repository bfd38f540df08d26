"""A server of ours on the simulated network, and raw connections to it: minutes pass at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access, Bind
from pydownpour.net.server import Route, Server, UpgradeRoute
from tests.fakes.network import End, Net

ACCESS = Access(token="open sesame", insecure=True)
HEAD = b"Host: 10.0.0.2\r\nAuthorization: Bearer open sesame\r\n"


class Serving(Net):
    """The process *there* serves routes; the process *here* calls."""

    server_: Server

    def start(
        self,
        routes: Sequence[Route | UpgradeRoute],
        access: Access = ACCESS,
        limits: Limits = DEFAULT,
    ) -> Server:
        """Listen."""
        self.server_ = Server(
            routes, bind=Bind(self.there.host.address), access=access, name="test", limits=limits
        )
        self.run(self.there, self.server_.start())
        self.port = int(self.server_.url.rpartition(":")[2])
        return self.server_

    def call(self) -> End:
        """A new connection that has said nothing."""
        return self.run(self.here, self.open(port=self.port))

    def say(self, end: End, *pieces: bytes) -> None:
        """Each piece arrives as a read of its own, all at one moment."""
        for piece in pieces:
            self.network.send(end.transport, piece)

    def ask(self, request: bytes) -> bytes:
        """The whole answer to a request on a connection of its own."""
        end = self.call()
        self.say(end, request)
        self.wait(1.0 if self.here.host.link.latency_s else 0.01)
        end.transport.close()
        return end.got


@contextlib.contextmanager
def serving(
    routes: Sequence[Route | UpgradeRoute],
    access: Access = ACCESS,
    limits: Limits = DEFAULT,
    **options: Any,
) -> Iterator[Serving]:
    """Start, and stop in the end."""
    with contextlib.closing(Serving(**options)) as net:
        net.start(routes, access, limits)
        yield net
        net.run(net.there, net.server_.stop())
