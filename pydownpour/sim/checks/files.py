"""Checks of what the coordinator leaves on its disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import msgspec

from pydownpour.errors import CheckpointError
from pydownpour.sim.checks.base import Check
from pydownpour.storage import safetensors
from pydownpour.storage.rundir import EVENTS, PARAMETERS, REPORT


@final
class RunFolderIsTrue(Check):
    """Files are whole or not there, and a disk's failure shows in the report and nowhere else."""

    name = "the run folder is true"

    def end(self) -> Iterator[str]:
        """Read it as its user would."""
        world = self.world
        disk = world.network.hosts["coordinator"].disk
        if disk is None or "storage" not in world.report:
            return
        files = {path.rpartition("/")[2]: content for path, content in disk.files().items()}
        yield from self._events(files.get(EVENTS, b""))
        told = world.report["storage"]
        missing = [name for name in (EVENTS, PARAMETERS, REPORT) if name not in files]
        if world.report["state"] == "done" and told == "ok" and missing:
            yield f"{', '.join(missing)} missing, and the report knows of no trouble"
        lost = world.report["lost"]
        if world.report["state"] == "done" and PARAMETERS in missing and PARAMETERS not in lost:
            yield f"no parameters, and the report says that {lost or 'nothing'} is lost"
        # The report cannot tell of its own file's failure: it is made before it is written.
        if told == "ok" and disk.failures and REPORT in files:
            yield f"the disk failed {disk.failures} times, and the report knows of no trouble"
        if told != "ok" and not disk.failures:
            yield f"nothing failed, but the report says: {told}"
        try:
            if PARAMETERS in files:
                safetensors.decode(files[PARAMETERS])
            if REPORT in files:
                msgspec.json.decode(files[REPORT])
        except (CheckpointError, msgspec.DecodeError) as error:
            yield f"half a file: {error}"

    def _events(self, content: bytes) -> Iterator[str]:
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            try:
                msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                yield f"line {number} of {EVENTS} is {line[:40]!r}...: {error}"
            if not line.endswith(b"\n"):
                yield f"line {number} of {EVENTS} has no end"
