"""Moves events of a job to the run folder, without holding anything up.

The folder's calls may block, so they run in the loop's executor, one at a time. A run without a
folder throws its events away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, final

from pydownpour.coordinator.job_state import JobState
from pydownpour.layout import Flat
from pydownpour.storage.files import Files
from pydownpour.storage.rundir import RunFolder


@final
class Recorder:
    """The service's way to the run folder; nothing here raises for what a disk does.

    Args:
        job: Whose events are kept.
        folder: Where, if it is known already. Without one nowhere, until ``open``.
    """

    def __init__(self, job: JobState, folder: RunFolder | None = None) -> None:
        self._job, self._folder = job, folder
        self._writing = asyncio.Lock()

    async def open(self, place: str | Callable[[], str], files: Files | None) -> None:
        """Make the run folder, or have it made, and keep everything there from now on.

        Raises:
            ConfigError: it cannot be made.
        """

        def make() -> RunFolder:
            folder = RunFolder(place if isinstance(place, str) else place(), files=files)
            folder.open()
            return folder

        self._folder = await asyncio.get_running_loop().run_in_executor(None, make)

    @property
    def path(self) -> str:
        """The run folder, "" if there is none."""
        return self._folder.path if self._folder is not None else ""

    @property
    def storage(self) -> str:
        """What the report says of it: "ok", "off", or the first failure and what came of it."""
        folder = self._folder
        if folder is None:
            return "off"
        words = [folder.trouble or "ok"]
        words += [f"{name} is in {path}" for name, path in folder.elsewhere.items()]
        words += [f"{name} is nowhere" for name in folder.lost]
        if lost := folder.events_lost:
            words.append(f"{lost} event{'s' * (lost != 1)} not written")
        return "; ".join(words)

    def kept(self) -> dict[str, Any]:
        """What the report says of its own files: ``storage``, ``elsewhere``, ``lost``."""
        folder = self._folder
        return {
            "storage": self.storage,
            "elsewhere": dict(folder.elsewhere) if folder is not None else {},
            "lost": list(folder.lost) if folder is not None else [],
        }

    async def run(self) -> None:
        """Write events as they come, every ``sweep_s``, until cancelled."""
        while True:
            await asyncio.sleep(self._job.limits.sweep_s)
            await self.flush()

    async def flush(self, *, sync: bool = False) -> None:
        """Write the events so far. ``sync``: they are on the disk when this returns."""
        async with self._writing:
            events = self._job.take_events(asyncio.get_running_loop().time())
            folder = self._folder
            if folder is None or not (events or sync):
                return
            await self._call(lambda: folder.append_events(events, sync=sync))

    async def write_parameters(
        self, flat: Flat, metadata: Mapping[str, str], *, whole: bool = True
    ) -> None:
        """Write the final parameters; those with holes (NaN) under a name of their own."""
        folder, job = self._folder, self._job
        if folder is None:
            return
        layout = job.declared.layout
        whole_mb = layout.len * 4 / 1e6

        def told(size: int) -> None:
            # From the disk's thread: one assignment, which whoever reads the notes sees whole.
            written = f"{min(size / 1e6, whole_mb):.1f} of {whole_mb:.1f} MB"
            job.note("ending", f"writing the final parameters: {written}")

        try:
            await self._call(
                lambda: folder.write_parameters(layout, flat, metadata, whole=whole, told=told)
            )
        finally:
            job.note("ending", "")

    async def write_report(self, report: Mapping[str, Any]) -> None:
        folder = self._folder
        if folder is not None:
            await self._call(lambda: folder.write_report(report))

    async def _call(self, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, write)
        assert self._folder is not None
        if self._folder.trouble and "storage" not in self._job.notes:
            self._job.note("storage", f"run folder: {self._folder.trouble}")
            now = asyncio.get_running_loop().time()
            self._job.note_event(now, "storage", reason=self._folder.trouble)
