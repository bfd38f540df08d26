"""Unit tests start no process: whoever tries fails with words that say where the test belongs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
_inside = False


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _inside and event in STARTS:
        raise AssertionError(f"a unit test starts a process ({event}); it belongs in tests/e2e")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _no_process() -> Iterator[None]:
    global _inside
    _inside = True
    yield
    _inside = False
