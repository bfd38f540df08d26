"""What an engine is told and tells: plans, command lines, folders, logs. No process is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pydownpour.engines import ENGINES, Plan, engine_named, logs, make_run_folder
from pydownpour.engines.local import BLAS_VARIABLES, LocalEngine, environment
from pydownpour.errors import ConfigError
from tests.fakes.hosts import HostsEngine


def test_tokens_travel_by_environment_and_only_the_jobs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYDOWNPOUR_TOKEN", "another")
    assert environment("secret")["PYDOWNPOUR_TOKEN"] == "secret"
    assert "PYDOWNPOUR_TOKEN" not in environment(None)


def test_children_use_one_blas_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in BLAS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    values = environment(None)
    assert values["OMP_NUM_THREADS"] == "3"
    assert {values[name] for name in BLAS_VARIABLES if name != "OMP_NUM_THREADS"} == {"1"}
    assert values["PYDOWNPOUR_SUPERVISED"] == str(os.getpid())


@pytest.mark.parametrize("counts", [{"shards": 0}, {"replicas": 0}])
def test_counts_below_one_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        Plan("job.py", **counts)  # type: ignore[arg-type]


def test_run_folders_are_new_and_named_after_the_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {make_run_folder("some/digits.py:job", None) for _ in range(3)}
    assert len(folders) == 3
    for folder in folders:
        assert folder.parent == Path("runs")
        assert folder.name.startswith("digits-")
        assert folder.is_dir()


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert make_run_folder("digits.py", tmp_path / "a") == tmp_path / "a"
    with pytest.raises(ConfigError, match="already holds a run"):
        make_run_folder("digits.py", tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the run folder"):
        make_run_folder("digits.py", tmp_path / "file" / "b")


@pytest.mark.parametrize(
    ("bind", "shards_bind"),
    [("10.0.0.5:7000", "10.0.0.5:0"), (":7000", "127.0.0.1:0"), ("[::1]:7000", "[::1]:0"),
     ("localhost", "localhost:0")],
)  # fmt: skip
def test_shards_listen_on_the_coordinator_s_host(bind: str, shards_bind: str) -> None:
    assert LocalEngine().bind(0, bind) == shards_bind
    arguments = Plan("x.py").shard(0, "http://127.0.0.1:1", shards_bind).arguments
    assert arguments[arguments.index("--bind") + 1] == shards_bind


def test_an_engine_is_found_by_its_name_or_by_where_it_stands() -> None:
    assert ENGINES == {"local": LocalEngine}
    assert isinstance(engine_named("local"), LocalEngine)
    assert isinstance(engine_named("tests.fakes.hosts:HostsEngine"), HostsEngine)
    assert engine_named("local") is not engine_named("local"), "one engine, one run"


@pytest.mark.parametrize("name", ["slurm", "", "local2", "json:loads", "tests.fakes.hosts:Path"])
def test_what_is_no_engine_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no engine .*known are local.*MODULE:CLASS"):
        engine_named(name)


@pytest.mark.parametrize("name", ["no.such.module:Engine", "json:Engine", ":Engine"])
def test_an_engine_that_cannot_be_imported_is_said_in_words(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        engine_named(name)


def test_a_cut_log_goes_on_where_it_was_cut_and_a_short_one_is_left_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "some.log"
    with open(path, "ab", buffering=0) as writer:
        for words in (b"first words\n", b"second words\n"):
            writer.write(words)
            assert logs.keep_short(path, 10)
            assert (path.read_bytes(), logs.older(path).read_bytes()) == (b"", words)
        writer.write(b"third\n")
        assert not logs.keep_short(path, 10)
    assert path.read_bytes() == b"third\n"
