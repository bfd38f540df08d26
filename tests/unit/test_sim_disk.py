"""The simulated disk: what survives what."""

from __future__ import annotations

import asyncio
import errno
import functools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pydownpour.errors import ConfigError
from pydownpour.sim.disk.disk import Operation, SimDisk
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.storage.files import Files, LocalFiles
from pydownpour.storage.rundir import RunFolder, make_run_folder

SEEDS = range(40)
MANY = 1 << 20


def disk(seed: int = 0) -> SimDisk:
    made = SimDisk(random.Random(seed))
    made.make_folder("run", exist_ok=False)
    return made


def code(call: Callable[[], object]) -> str:
    """The errno's name a call fails with."""
    with pytest.raises(OSError, match=r".") as raised:
        call()
    assert raised.value.errno is not None
    return errno.errorcode[raised.value.errno]


@pytest.fixture(params=["simulated", "local"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Both kinds of disk behave the same while nothing fails; "run" is a folder of theirs."""
    if request.param == "simulated":
        return disk()
    monkeypatch.chdir(tmp_path)
    local = LocalFiles()
    local.make_folder("run", exist_ok=False)
    return local


def test_it_is_a_disk_like_the_real_one(files: Files) -> None:
    files.append("run/a", b"one ", sync=False)
    files.append("run/a", bytearray(b"two"), sync=True)
    assert files.read("run/a", MANY) == b"one two"
    assert files.read("run/a", 2) == b"one"  # one more, so that too many show
    files.replace("run/a", [b"th", memoryview(b"ree")])
    assert files.read("run/a", MANY) == b"three"
    files.make_folder("run/deep/er", exist_ok=False)
    files.make_folder("run/deep/er", exist_ok=True)
    files.append("run/deep/er/b", b"x", sync=False)
    assert code(lambda: files.make_folder("run/deep", exist_ok=False)) == "EEXIST"
    assert code(lambda: files.make_folder("run/a", exist_ok=False)) == "EEXIST"
    assert code(lambda: files.make_folder("run/a/b", exist_ok=False)) == "ENOTDIR"
    assert code(lambda: files.read("run/none", MANY)) == "ENOENT"
    assert code(lambda: files.read("run/deep", MANY)) == "EISDIR"
    assert code(lambda: files.append("run/deep", b"", sync=False)) == "EISDIR"
    assert code(lambda: files.append("none/a", b"", sync=False)) == "ENOENT"
    assert code(lambda: files.append("run/a/b", b"", sync=False)) == "ENOTDIR"
    assert code(lambda: files.replace("none/a", [b""])) == "ENOENT"


def test_a_power_cut_takes_what_was_not_synced_and_tears_tails() -> None:
    kept = set()
    for seed in SEEDS:
        d = disk(seed)
        d.append("run/log", b"synced|", sync=True)
        d.append("run/log", b"0123456789", sync=False)
        d.append("run/new", b"never synced", sync=False)
        d.power_cut()
        log = d.read("run/log", MANY)
        assert log.startswith(b"synced|")
        assert b"synced|0123456789".startswith(log)
        assert code(functools.partial(d.read, "run/new", MANY)) == "ENOENT"
        assert d.lost == 12 + 17 - len(log)
        kept.add(len(log) - 7)
        d.append("run/log", b"!", sync=True)
        d.power_cut()
        assert d.read("run/log", MANY) == log + b"!"
    assert {0, 10} < kept  # nothing, everything, and something between


def test_a_replaced_file_is_the_old_or_the_new_one() -> None:
    d = disk()
    d.replace("run/report", [b"old"])
    d.power_cut()
    assert d.read("run/report", MANY) == b"old"
    d.fail("sync")
    assert code(lambda: d.replace("run/report", [b"new"])) == "EIO"
    d.power_cut()
    d.heal()
    assert d.read("run/report", MANY) == b"old"
    d.replace("run/report", [b"new"])
    d.power_cut()
    assert d.read("run/report", MANY) == b"new"


def test_a_full_disk_takes_all_or_nothing() -> None:
    d = disk()
    d.fill(9)
    d.append("run/log", b"01234", sync=True)
    assert code(lambda: d.append("run/log", b"56789", sync=True)) == "ENOSPC"
    assert d.read("run/log", MANY) == b"01234"
    assert code(lambda: d.replace("run/log", [b"56789"])) == "ENOSPC"
    assert d.read("run/log", MANY) == b"01234"
    d.append("run/log", b"56", sync=True)
    assert d.read("run/log", MANY) == b"0123456"
    d.fill(3)
    assert code(lambda: d.replace("run/log", [b"longer"])) == "ENOSPC"
    d.replace("run/log", [b"abc"])  # what the failed one wrote is free again, and the old file
    d.append("run/log", b"3456789", sync=True)
    assert code(lambda: d.append("run/log", b"X", sync=False)) == "ENOSPC"


def test_after_a_failed_sync_later_ones_do_not_bring_the_bytes_back() -> None:
    for seed in SEEDS:
        d = disk(seed)
        d.append("run/log", b"safe|", sync=True)
        d.append("run/log", b"gone|", sync=False)
        d.fail("sync")
        assert code(functools.partial(d.append, "run/log", b"back|", sync=True)) == "EIO"
        d.heal()
        d.append("run/log", b"later|", sync=True)
        assert d.read("run/log", MANY) == b"safe|gone|later|"
        d.power_cut()
        assert b"safe|gone|later|".startswith(d.read("run/log", MANY))
        if d.read("run/log", MANY) == b"safe|":
            break
    else:
        pytest.fail("no seed lost what the failed sync should have written")


@pytest.mark.parametrize("operation", ["read", "write"])
def test_reads_and_writes_fail_at_a_rate(operation: Operation) -> None:
    d = disk()
    d.append("run/a", b"x", sync=True)
    d.fail(operation, 0.5)
    failed = 0
    for _ in range(200):
        try:
            if operation == "read":
                d.read("run/a", MANY)
            else:
                d.append("run/a", b"x", sync=True)
        except OSError as error:
            failed += error.errno == errno.EIO
    assert 60 < failed < 140
    assert d.failures == failed


def test_a_flipped_bit_shows_in_one_read_only() -> None:
    d = disk()
    d.append("run/a", bytes(100), sync=True)
    d.flip()
    read = d.read("run/a", MANY)
    assert sum(byte.bit_count() for byte in read) == 1
    assert d.flips == 1
    d.heal()
    assert d.read("run/a", MANY) == bytes(100)


def test_seeds_repeat() -> None:
    def tail(seed: int) -> bytes:
        d = disk(seed)
        d.append("run/a", b"", sync=True)
        d.append("run/a", bytes(range(200)), sync=False)
        d.power_cut()
        return d.read("run/a", MANY)

    assert [tail(seed) for seed in SEEDS] == [tail(seed) for seed in SEEDS]
    assert len({len(tail(seed)) for seed in SEEDS}) > 10


def test_a_slow_disk_answers_late_in_virtual_time() -> None:
    loop = SimLoop(events_max=1000, virtual_s_max=100)
    slow = SimDisk(random.Random(0), loop.charge)
    slow.make_folder("run", exist_ok=True)
    slow.slow(2.5)

    async def main() -> tuple[float, float]:
        write = loop.run_in_executor(None, lambda: slow.append("run/a", b"x", sync=True))
        assert slow.files() == {"run/a": b"x"}  # the effect is at once, the answer late
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(1.0):
                await write
        written = loop.time()
        with pytest.raises(FileNotFoundError):
            await loop.run_in_executor(None, lambda: slow.read("run/none", MANY))
        return written, loop.time()

    try:
        assert loop.run_until_complete(main()) == (1.0, 3.5)
    finally:
        loop.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda d: d.fail("fly"),
        lambda d: d.fail("read", 1.5),
        lambda d: d.flip(-1),
        lambda d: d.slow(-1),
    ],
)
def test_impossible_faults_are_refused(call: Callable[[SimDisk], None]) -> None:
    with pytest.raises(ConfigError):
        call(disk())


def test_a_run_folder_survives_a_bad_disk_in_words() -> None:
    d = disk()
    path = make_run_folder("digits", "20260101-000000", files=d)
    folder = RunFolder(path, files=d)
    folder.open()
    folder.append_events([{"event": "start"}], sync=True)
    d.fill()
    folder.append_events([{"event": "lost"}], sync=True)
    folder.write_report({"state": "done"})
    words = "no space left on device (ENOSPC)"
    assert folder.trouble == f"events.jsonl: {words}; nor elsewhere: {words}"
    assert folder.lost == ["report.json"]
    assert folder.events_lost == 1
    d.heal()
    folder.write_report({"state": "done"})
    assert b'"done"' in d.read(f"{path}/report.json", MANY)
