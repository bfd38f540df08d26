"""The replica's end of one upgraded connection: parameters land in the target, the rest is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from pydownpour import _core
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.wire import frames
from pydownpour.wire.frames import Kind


@final
class ReplicaStream(StreamProtocol):
    """Feeds received bytes to a core inlet; frames that are not parameters go to ``on_frame``."""

    def __init__(
        self,
        inlet: _core.ReplicaInlet,
        target: memoryview,
        on_frame: Callable[[_core.Frame], None],
        on_lost: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__()
        self._inlet = inlet
        self._buffers = (memoryview(inlet), target)
        self._on_frame, self._when_lost = on_frame, on_lost

    def get_buffer(self, sizehint: int) -> Any:
        """The inlet's scratch for headers, the target itself for parameters."""
        which, start, stop = self._inlet.window()
        return self._buffers[which][start:stop]

    def received(self, n: int) -> None:
        """Take frames out as they complete."""
        frame = self._inlet.advance(n)
        while frame is not None:
            if frame.kind == Kind.PING:
                self.write(frames.simple(Kind.PONG, seq=frame.seq))
            else:
                self._on_frame(frame)
            frame = self._inlet.advance(0)

    def lost(self, error: BaseException | None) -> None:
        """Tell the link."""
        self._when_lost(error)
