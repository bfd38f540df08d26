"""The run folder: what is kept of a run, and that no disk can end one."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from pydownpour import limits
from pydownpour.errors import ConfigError
from pydownpour.layout import Layout
from pydownpour.storage.files import LocalFiles
from pydownpour.storage.rundir import RunFolder, claim_run_folder, make_run_folder
from tests.fakes.disk import FakeDisk

LAYOUT = Layout.of({"w": np.zeros((2, 2), np.float32), "s": np.float64(0)})


def test_a_run_is_kept_in_files_anybody_reads(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "runs" / "x"))
    folder.open()
    folder.open()
    folder.append_events([{"t": 0.0, "event": "start"}, {"t": 1.5, "event": "join", "replica": 1}])
    folder.append_events([], sync=True)
    folder.append_events([{"t": 2.0, "event": "end"}], sync=True)
    folder.write_parameters(LAYOUT, np.arange(5, dtype=np.float32), {"job": "x"})
    folder.write_report({"accuracy": 0.5})
    assert folder.trouble == ""
    path = Path(folder.path)
    lines = (path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "join", "end"]
    assert json.loads((path / "report.json").read_text()) == {"accuracy": 0.5}
    read = safetensors.numpy.load_file(path / "parameters.safetensors")
    assert read["s"].dtype == np.float64
    assert read["w"].tolist() == [[1, 2], [3, 4]]
    assert sorted(os.listdir(path)) == ["events.jsonl", "parameters.safetensors", "report.json"]


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    made = [
        make_run_folder("digits", "20260131-235959", parent=str(tmp_path / "runs"))
        for _ in range(3)
    ]
    assert [os.path.basename(path) for path in made] == [
        "digits-20260131-235959",
        "digits-20260131-235959-2",
        "digits-20260131-235959-3",
    ]


def test_of_two_who_want_one_folder_one_gets_it(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    claim_run_folder(path)
    with pytest.raises(ConfigError, match="already holds a run; name another or move it"):
        claim_run_folder(path)
    with pytest.raises(ConfigError, match="already holds a run"):
        claim_run_folder(make_run_folder("x", "1", parent=str(tmp_path / "runs")))


def test_what_a_run_writes_is_its_owner_s_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "runs" / "x"
        claim_run_folder(str(path))
        folder = RunFolder(str(path))
        folder.open()
        folder.append_events([{"event": "start"}])
        folder.write_report({})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


def test_a_folder_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot make the run folder .*\(ENOTDIR\)"):
        RunFolder(str(tmp_path / "file" / "x")).open()
    with pytest.raises(ConfigError, match="cannot make the run folder"):
        make_run_folder("x", "1", parent=str(tmp_path / "file"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_broken_disk_is_noted_once_and_never_raised(code: int) -> None:
    disk = FakeDisk()
    folder = RunFolder("r", files=disk)
    folder.open()
    disk.break_with(code)
    folder.append_events([{"event": "a"}, {"event": "b"}])
    folder.write_parameters(LAYOUT, np.zeros(5, np.float32), {})
    folder.write_report({})
    words = f"{os.strerror(code).lower()} ({errno.errorcode[code]})"
    assert folder.trouble.startswith(f"events.jsonl: {words}; nor elsewhere: {words}")
    assert folder.lost == ["parameters.safetensors", "report.json"]
    assert folder.events_lost == 2
    disk.faults.clear()
    folder.append_events([{"event": "c"}])
    assert disk.files["r/events.jsonl"] == b'{"event":"c"}\n', "it goes on when space returns"


def test_what_cannot_be_had_again_is_written_elsewhere() -> None:
    disk = FakeDisk()
    folder = RunFolder("runs/r/", files=disk)
    folder.open()
    disk.break_with(errno.ENOSPC, part="runs/r/")
    folder.append_events([{"event": "a"}])
    folder.write_parameters(LAYOUT, np.arange(5, dtype=np.float32), {})
    folder.write_report({"state": "done"})
    assert folder.elsewhere == {
        "parameters.safetensors": "spare/pydownpour-r/parameters.safetensors",
        "report.json": "spare/pydownpour-r/report.json",
    }
    assert folder.lost == []
    read = safetensors.numpy.load(disk.files[folder.elsewhere["parameters.safetensors"]])
    assert read["w"].tolist() == [[1, 2], [3, 4]]
    disk.break_with(errno.EIO)
    folder.write_report({"state": "done"})
    assert (folder.lost, list(folder.elsewhere)) == (["report.json"], ["parameters.safetensors"])
    assert "nor elsewhere: " in folder.trouble
    disk.faults.clear()
    folder.write_report({"state": "done"})
    assert folder.lost == []
    assert b'"done"' in disk.files["runs/r/report.json"]


def test_events_do_not_fill_the_disk() -> None:
    disk = FakeDisk()
    folder = RunFolder("r", files=disk, limits=limits.Limits(events_size_max=40))
    folder.append_events([{"event": "0123456789"}] * 3)
    assert disk.files["r/events.jsonl"].count(b"\n") == 1
    assert folder.events_lost == 2
    assert "events_size_max" in folder.trouble


def test_names_too_long_for_the_header_do_not_raise() -> None:
    folder = RunFolder("r", files=FakeDisk(), limits=limits.Limits(stored_header_size_max=10))
    folder.write_parameters(LAYOUT, np.zeros(5, np.float32), {})
    assert "stored_header_size_max" in folder.trouble


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    files = LocalFiles()
    files.replace(str(path), [b"old"])

    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        files.replace(str(path), pieces())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.json"]


def test_what_was_appended_by_half_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    files = LocalFiles()
    files.append(str(path), b"one\n", sync=True)
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data[:1])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="full"):
            files.append(str(path), b"three\n", sync=True)
    files.append(str(path), b"four\n", sync=True)
    assert path.read_bytes() == b"one\nfour\n"


def test_the_rename_comes_after_the_data_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def noted_rename(source: str, target: str) -> None:
        order.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_rename)
    LocalFiles().replace(str(tmp_path / "x"), [b"1", memoryview(b"2")])
    assert order == ["file", "rename", "folder"]
    assert (tmp_path / "x").read_bytes() == b"12"


def test_reading_shows_when_there_is_more(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert LocalFiles().read(str(tmp_path / "x"), 3) == b"1234"
    LocalFiles().append(str(tmp_path / "x"), b"67", sync=True)
    assert LocalFiles().read(str(tmp_path / "x"), 10) == b"1234567"
