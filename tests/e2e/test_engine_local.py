"""The local engine with roles that only pretend: who is started, restarted, blamed and reaped."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pydownpour import engines
from pydownpour.engines import LocalEngine, Plan, logs
from pydownpour.engines.local import environment
from pydownpour.errors import ConfigError, JobFailed
from pydownpour.limits import Limits
from pydownpour.net.access import Access
from pydownpour.wire.messages import Status

FAKES = (sys.executable, str(Path(__file__).parents[1] / "fakes" / "roles.py"))
QUICK = Limits(restart_backoff_s=0.01)


class Stage:
    """A script for fake roles, and what they did."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "roles.json"
        self.run_folder = folder / "run"
        self.events: list[tuple[str, str]] = []
        self.folders: list[Path | None] = []

    def event(self, event: str, words: str) -> None:
        self.events.append((event, words))

    def status(self, status: Status) -> None:
        self.events.append(("status", status.state))

    async def run(
        self,
        acts: dict[str, Any],
        *,
        access: Access | None = None,
        limits: Limits = QUICK,
        **settings: Any,
    ) -> dict[str, Any]:
        self.script.write_text(json.dumps(acts))
        plan = Plan(str(self.script), run_folder=self.run_folder, **settings)
        return await engines.run(
            plan,
            LocalEngine(FAKES),
            access=access,
            observer=self,
            on_folder=self.folders.append,
            limits=limits,
        )

    def starts(self, title: str) -> list[tuple[int, str]]:
        path = self.script.with_suffix(".starts") / title
        if not path.exists():
            return []
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
        return [(int(pid), arguments) for pid, arguments in lines]

    def pids(self) -> list[int]:
        folder = self.script.with_suffix(".starts")
        return [pid for path in folder.glob("*") for pid, _ in self.starts(path.name)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    def check_nothing_left(self) -> None:
        """Neither a process nor a zombie."""
        assert self.pids()
        assert [pid for pid in self.pids() if psutil.pid_exists(pid)] == []
        mine = psutil.Process().children()
        assert [child for child in mine if FAKES[1] in child.cmdline()] == []


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setenv("FAKE_ROLES", str(stage.script))
    return stage


async def test_the_report_is_the_coordinators_and_every_process_got_its_command(
    stage: Stage,
) -> None:
    acts = {"coordinator-0": [["serve", 2]], "replica-0": [["work"]], "replica-1": [["work"]]}
    report = await stage.run(acts, shards=2, replicas=2, bind="127.0.0.1:0")
    assert report == {"job": "fake", "state": "done", "reason": "all work is done", "samples": 7}
    ((_, coordinator),) = stage.starts("coordinator-0")
    assert coordinator == (
        f"coordinator {stage.script} --shards 2 --replicas 2 --bind 127.0.0.1:0 "
        f"--run-folder {stage.run_folder}"
    )
    ((_, shard),) = stage.starts("shard-1")
    assert shard == (
        f"shard --coordinator http://127.0.0.1:1 --index 1 --bind 127.0.0.1:0 --job {stage.script}"
    )
    ((_, replica),) = stage.starts("replica-0")
    assert replica == (f"replica {stage.script} --coordinator http://127.0.0.1:1 --name replica-0")
    stage.check_nothing_left()


async def test_a_crashed_replica_starts_again_and_one_that_ended_does_not(stage: Stage) -> None:
    acts = {
        "coordinator-0": [["serve", 2]],
        "replica-0": [["kill", 9], ["exit", 1], ["work"]],
        "replica-1": [["work"]],
    }
    await stage.run(acts, shards=1, replicas=2)
    assert len(stage.starts("replica-0")) == 3
    assert len(stage.starts("replica-1")) == 1
    restarts = [words for event, words in stage.events if event == "restart"]
    assert "replica 0 was killed by SIGKILL" in restarts[0]
    assert "replica 0 ended with exit code 1" in restarts[1]
    stage.check_nothing_left()


async def test_a_function_that_always_raises_ends_the_job_with_its_traceback(
    stage: Stage,
) -> None:
    acts = {
        "coordinator-0": [["stay"]],
        "replica-0": [["raise", "ZeroDivisionError: division by zero"]],
    }
    with pytest.raises(JobFailed) as failed:
        await stage.run(acts, shards=1, replicas=1)
    assert "third time in a row" in str(failed.value)
    assert 'File "user.py", line 7' in str(failed.value)
    assert "replica-0.log" in str(failed.value)
    assert len(stage.starts("replica-0")) == QUICK.restart_same_failure_max
    stage.check_nothing_left()


async def test_a_replica_with_wrong_settings_ends_the_job_with_its_words(stage: Stage) -> None:
    acts = {"coordinator-0": [["stay"]], "replica-0": [["refuse", "no job in digits.py"]]}
    with pytest.raises(ConfigError, match=r"^no job in digits\.py$"):
        await stage.run(acts, shards=1, replicas=1)
    stage.check_nothing_left()


async def test_a_crashed_shard_ends_the_job_and_is_named_with_its_last_words(
    stage: Stage,
) -> None:
    acts = {"coordinator-0": [["stay"]], "shard-1": [["kill", int(signal.SIGKILL)]]}
    with pytest.raises(JobFailed) as failed:
        await stage.run(acts, shards=2, replicas=2)
    words = str(failed.value)
    assert words.startswith("shard 1 was killed by SIGKILL; without durable shards")
    assert "| last words of shard-1" in words
    assert "shard-1.log" in words
    stage.check_nothing_left()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (["exit", 7], "coordinator 0 ended with exit code 7"),
        (["exit", 0], "coordinator 0 ended with exit code 0"),
        (["kill", 11], "coordinator 0 was killed by SIGSEGV"),
    ],
)
async def test_a_coordinator_that_ends_without_a_report_is_named(
    stage: Stage, act: list[Any], words: str
) -> None:
    with pytest.raises(JobFailed) as failed:
        await stage.run({"coordinator-0": [act]}, shards=1, replicas=1)
    assert str(failed.value).startswith(words)
    assert "| last words of coordinator-0" in str(failed.value)
    assert stage.starts("replica-0") == []
    stage.check_nothing_left()


async def test_what_the_coordinator_refuses_is_a_config_error_in_its_words(stage: Stage) -> None:
    with pytest.raises(ConfigError, match=r"^port 80 is in use$"):
        await stage.run({"coordinator-0": [["refuse", "port 80 is in use"]]}, shards=1, replicas=1)
    stage.check_nothing_left()


async def test_a_failed_job_carries_its_report(stage: Stage) -> None:
    acts = {"coordinator-0": [["report", "failed"]], "replica-0": [["stay"]]}
    with pytest.raises(JobFailed, match="the shards ran away") as failed:
        await stage.run(acts, shards=1, replicas=1)
    assert failed.value.details["report"]["state"] == "failed"
    stage.check_nothing_left()


async def test_a_coordinator_that_never_listens_is_given_up(stage: Stage) -> None:
    hasty = dataclasses.replace(QUICK, join_patience_s=0.5)
    with pytest.raises(JobFailed, match="did not start to listen"):
        await stage.run({"coordinator-0": [["mute"]]}, shards=1, replicas=1, limits=hasty)


async def test_what_users_print_goes_to_the_log_and_not_to_the_engine(stage: Stage) -> None:
    acts = {"coordinator-0": [["serve", 1]], "replica-0": [["noise"]]}
    report = await stage.run(acts, shards=1, replicas=1)
    assert report["state"] == "done"
    log = (stage.run_folder / "logs" / "replica-0.log").read_text()
    assert "only the user's own output" in log
    assert '{"event": "listening"}' in log
    said = [words for event, words in stage.events if event == "print"]
    assert len(said) == 1, "what a child of the user's prints is in the log alone"
    assert said[0].startswith('replica-0: {"state": "failed"')
    stage.check_nothing_left()


async def test_an_observer_that_raises_ends_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: str, words: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stage, "event", broken)
    report = await stage.run({"coordinator-0": [["serve", 1]], "replica-0": [["work"]]})
    assert report["state"] == "done"
    assert caplog.text.count("an observer failed (OSError(28") == 1, "said, and said once"


async def test_cancelling_ends_every_process(stage: Stage) -> None:
    acts = {"coordinator-0": [["stay"]], "replica-0": [["stay"]], "replica-1": [["stubborn"]]}
    run = asyncio.create_task(stage.run(acts, shards=1, replicas=2))
    await stage.until(lambda: len(stage.pids()) == 4)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ("stop", "stopping") in stage.events
    stage.check_nothing_left()


async def test_a_second_cancellation_kills_at_once(stage: Stage) -> None:
    # So long that the test would run into its timeout if the first stop were waited for.
    patient = dataclasses.replace(QUICK, shutdown_s=600.0)
    acts = {f"{role}-0": [["stubborn"]] for role in ("coordinator", "shard", "replica")}
    run = asyncio.create_task(stage.run(acts, shards=1, replicas=1, limits=patient))
    await stage.until(lambda: len(stage.pids()) == 3)
    run.cancel()
    await stage.until(lambda: ("stop", "stopping") in stage.events)
    for _ in range(10):
        run.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await run
    stage.check_nothing_left()


async def test_cancelling_while_processes_are_being_made_leaves_none(stage: Stage) -> None:
    acts = {"coordinator-0": [["stay"]]}
    for loops in (0, 1, 3, 10):
        stage.run_folder = stage.script.with_name(f"run-{loops}")
        run = asyncio.create_task(stage.run(acts, shards=1, replicas=1))
        for _ in range(loops):
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    mine = psutil.Process().children(recursive=True)
    assert [child for child in mine if FAKES[1] in child.cmdline()] == []


async def test_what_a_replica_started_ends_with_it(stage: Stage) -> None:
    acts = {"coordinator-0": [["stay"]], "replica-0": [["family"]]}
    run = asyncio.create_task(stage.run(acts, shards=1, replicas=1))
    await stage.until(lambda: bool(stage.starts("grandchild")))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    ((grandchild, _),) = stage.starts("grandchild")
    await stage.until(lambda: not _alive(grandchild))
    stage.script.with_suffix(".starts").joinpath("grandchild").unlink()
    stage.check_nothing_left()


def _alive(pid: int) -> bool:
    # An orphan is reaped by init, which may take its time: a zombie counts as ended.
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_program_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="cannot start coordinator-0: No such file"):
        await engines.run(
            Plan("job.py", run_folder=tmp_path / "run"), LocalEngine([str(tmp_path / "missing")])
        )


async def test_children_of_a_killed_engine_do_not_outlive_it(stage: Stage) -> None:
    acts = {f"{role}-0": [["stubborn"]] for role in ("coordinator", "shard", "replica")}
    stage.script.write_text(json.dumps(acts))
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from pydownpour.engines import LocalEngine, Plan, run\n"
        "script, folder, *fakes = sys.argv[1:]\n"
        "asyncio.run(run(Plan(script, run_folder=Path(folder)), LocalEngine(fakes)))\n"
    )
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(stage.script), str(stage.run_folder), *FAKES
    )
    await stage.until(lambda: len(stage.pids()) == 3)
    engine.kill()
    await engine.wait()
    await stage.until(lambda: not any(_alive(pid) for pid in stage.pids()))
    assert [pid for pid in stage.pids() if _alive(pid)] == []
    assert len(stage.pids()) == 3, "and nobody started another"


async def test_a_child_ends_when_its_standard_input_does(stage: Stage) -> None:
    """The portable half: no kernel kills it here, for its parent lives."""
    stage.script.write_text(json.dumps({"replica-0": [["stubborn"]]}))
    child = await asyncio.create_subprocess_exec(
        *FAKES, "replica", "job.py", "--name", "replica-0",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
        env=environment(None), start_new_session=True,
    )  # fmt: skip
    await stage.until(lambda: len(stage.pids()) == 1)
    assert child.stdin is not None
    child.stdin.close()
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL


async def test_a_child_whose_engine_is_gone_before_it_looks_ends_at_once(stage: Stage) -> None:
    stage.script.write_text("{}")
    child = await asyncio.create_subprocess_exec(
        *FAKES, "replica", "job.py", "--name", "replica-0",
        stdin=asyncio.subprocess.PIPE, env={**environment(None), "PYDOWNPOUR_SUPERVISED": "1"},
    )  # fmt: skip
    assert await asyncio.wait_for(child.wait(), 60) == 1
    assert stage.pids() == []


async def test_no_command_line_holds_the_token(stage: Stage) -> None:
    acts = {"coordinator-0": [["serve", 1]], "replica-0": [["work"]]}
    await stage.run(acts, shards=1, replicas=1, access=Access(token="secret"))
    lines = [arguments for path in stage.script.with_suffix(".starts").glob("*")
             for _, arguments in stage.starts(path.name)]  # fmt: skip
    assert len(lines) == 3
    assert not any("secret" in line for line in lines)


async def test_a_run_without_a_token_makes_one_and_keeps_it_for_its_owner(stage: Stage) -> None:
    acts = {"coordinator-0": [["serve", 1]], "replica-0": [["tell"]]}
    await stage.run(acts)
    assert stage.folders == [stage.run_folder]
    token = (stage.run_folder / "token").read_text().strip()
    assert len(token) == 64
    assert f"replica-0: my token is {token}" in [words for _, words in stage.events]
    (words,) = (words for _, words in stage.events if "to join by hand" in words)
    assert words.endswith(f"--coordinator http://127.0.0.1:1 --token-file {stage.run_folder}/token")
    assert token not in words


async def test_a_run_may_have_no_token_if_somebody_says_so(stage: Stage) -> None:
    acts = {"coordinator-0": [["serve", 1]], "replica-0": [["work"]]}
    await stage.run(acts, access=Access(no_token=True))
    assert not (stage.run_folder / "token").exists()
    for title in ("coordinator-0", "shard-0", "replica-0"):
        ((_, arguments),) = stage.starts(title)
        assert arguments.endswith(" --no-token")


async def test_a_log_that_grows_without_end_is_cut_and_what_it_held_is_kept_once(
    stage: Stage,
) -> None:
    short = dataclasses.replace(QUICK, log_size_max=50_000, log_look_s=0.01)
    acts = {"coordinator-0": [["serve"]], "replica-0": [["chatter"]]}
    await stage.run(acts, shards=1, replicas=1, limits=short)
    log = stage.run_folder / "logs" / "replica-0.log"
    before = logs.older(log)
    assert before.read_bytes().startswith(b"line 0\n")
    assert before.stat().st_size > short.log_size_max
    assert before.stat().st_mode & 0o077 == 0
    lines = log.read_text().splitlines()
    assert lines[-1] == "the last line"
    assert all(line.startswith("line ") for line in lines[1:-1])
    stage.check_nothing_left()
