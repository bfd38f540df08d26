"""The command line: words, exit codes, and what it hands on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import pydownpour
from pydownpour.cli import failures
from pydownpour.cli.app import app
from pydownpour.cli.options import AccessOptions
from pydownpour.engines import Engine, LocalEngine, Plan
from pydownpour.errors import (
    AuthError,
    ConfigError,
    ConnectFailed,
    JobFailed,
    LayoutMismatch,
    NonFiniteGradient,
)
from pydownpour.replica.failure import user_traceback

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("run", "demo", "sim", "coordinator", "shard", "replica", "policy", "doctor")


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"PYDOWNPOUR_TOKEN": "", **environment})


# -- words -----------------------------------------------------------------------------------------


def test_version() -> None:
    assert invoke("--version").output == f"pydownpour {pydownpour.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_an_example(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"pydownpour {command}" in result.output


def test_the_groups_help_names_every_command_and_exit_code() -> None:
    output = invoke("--help").output
    for words in (*COMMANDS, "Exit codes: 0 done", "130 stopped by Ctrl-C"):
        assert words in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "Missing argument 'FILE[:JOB]'"),
        (["run", "x.py", "--shards", "0"], "'--shards'"),
        (["run", "x.py", "--engine", "ray"], "there is no engine 'ray'; known are local"),
        (["coordinator", "x.py"], "Missing option '--shards'"),
        (["replica", "x.py"], "Missing option '--coordinator'"),
        (["traein"], "No such command"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("command", ["run", "coordinator"])
def test_another_address_without_token_and_tls_is_refused_in_nets_words(command: str) -> None:
    result = invoke(command, "x.py", "--shards", "1", "--bind", "0.0.0.0:0")
    assert result.exit_code == 2
    assert result.stderr.startswith("pydownpour: binding 0.0.0.0:0 would let others in")
    assert "--insecure" in result.stderr
    assert "Traceback" not in result.output + result.stderr


def test_a_missing_job_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("coordinator", "absent.py", "--shards", "1")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"pydownpour: no job file 'absent.py' (current folder {tmp_path})"
    ]


def test_a_replica_without_a_function_is_refused_before_it_asks_anybody(tmp_path: Path) -> None:
    path = tmp_path / "no_function.py"
    path.write_text(
        "import pydownpour as dp\njob = dp.Job(parameters={'w': [1.0]}, optimizer=dp.SGD(1.0))\n"
    )
    result = invoke("replica", str(path), "--coordinator", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "without a replica function; put @job.replica above" in result.stderr


def test_doctor_says_what_this_machine_is() -> None:
    result = invoke("doctor")
    assert result.exit_code == 0
    for words in ("python", "aiohttp", "simd", "event loop", "congestion control", "open files",
                  "BLAS threads", "1347 + 450 images", "fragment_size"):  # fmt: skip
        assert words in result.output


def test_doctor_says_that_mnist_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydownpour.data._places", lambda path: iter([tmp_path]))
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "not found; no mnist.npz" in result.output


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (LayoutMismatch("x"), 2),
        (AuthError("x"), 2),
        (JobFailed("x"), 1),
        (ConnectFailed("x"), 1),
        (failures.Interrupted("x"), 130),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    @click.command()
    @failures.in_words
    def command() -> None:
        raise error

    result = CliRunner().invoke(command)
    assert result.exit_code == code
    assert result.stderr == "pydownpour: x\n"


class Heard:
    """A channel that listens."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def emit(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


def caught(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ZeroDivisionError("division by zero"), 3, "ZeroDivisionError: division by zero"),
        (NonFiniteGradient("NaN at 3"), 3, "NaN at 3"),
        (KeyError(), 3, "KeyError"),
        (ConnectFailed("nobody there"), 1, "nobody there"),
        (ConfigError("no job"), 2, "no job"),
    ],
)
def test_what_a_replica_tells_its_engine(error: Exception, code: int, message: str) -> None:
    heard = Heard()
    assert failures.tell_engine(heard, caught(error), users=True) == code  # type: ignore[arg-type]
    (said,) = heard.messages
    assert (said["event"], said["code"]) == ("error", code)
    words, _, line = said["message"].partition(" (")
    assert words == message
    assert bool(line) == ("traceback" in said) == (code == 3)
    assert not line or (line.startswith("test_cli.py:") and line.endswith(" in caught)"))


def test_an_exception_elsewhere_is_nobodys_function() -> None:
    assert failures.tell_engine(None, caught(ZeroDivisionError())) == 1


def test_a_users_traceback_begins_with_their_own_line() -> None:
    with pytest.raises(ConfigError) as raised:
        pydownpour.Work(0)
    lines = user_traceback(raised.value)
    assert "test_cli.py" in lines[1]
    assert lines[-1].startswith("pydownpour.errors.ConfigError")


# -- tokens ----------------------------------------------------------------------------------------


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("  secret\n")
    monkeypatch.setenv("PYDOWNPOUR_TOKEN", "other\n")
    assert AccessOptions(token_file=str(path)).access().token == "secret"
    assert AccessOptions().access().token == "other"
    assert AccessOptions(no_token=True).access().token is None
    monkeypatch.setenv("PYDOWNPOUR_TOKEN", "")
    assert AccessOptions().access().token is None
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        AccessOptions(token_file=str(path)).access()
    with pytest.raises(ConfigError, match="cannot read the token file"):
        AccessOptions(token_file=str(tmp_path)).access()
    with pytest.raises(ConfigError, match="--token-file and --no-token contradict each other"):
        AccessOptions(token_file=str(path), no_token=True).access()


@pytest.mark.parametrize("token", ["two\nlines", "\xe9t\xe9", "x" * 1001])
def test_what_no_header_can_carry_is_no_token(token: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    with pytest.raises(ConfigError, match="must hold one line of at most 1000 printable ASCII"):
        AccessOptions(token_file=str(path)).access()


@pytest.mark.parametrize("command", ["run", "coordinator", "shard", "replica"])
def test_no_command_takes_a_token_where_others_can_read_it(command: str) -> None:
    result = invoke(command, "--token", "secret")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert "--token-file" in invoke(command, "--help").output


def test_children_get_every_option_but_the_token() -> None:
    options = AccessOptions(
        tls_cert="c", tls_key="k", tls_ca="a", insecure=True, allow_host=("One.Example:443", "two")
    )
    assert options.forwarded() == (
        "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a",
        "--allow-host", "One.Example:443", "--allow-host", "two", "--insecure",
    )  # fmt: skip
    assert options.access().allow_hosts == ("one.example", "two")
    assert AccessOptions(token_file="f", no_token=True).forwarded() == ()


# -- run -------------------------------------------------------------------------------------------


class Runs:
    """Stands for ``engines.run``: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.plan = Plan("")
        self.engine: Engine = LocalEngine()
        self.asked: dict[str, Any] = {}
        self.error: Exception | None = None
        self.report: dict[str, Any] = {"job": "x", "state": "done", "reason": "", "accuracy": 1.0}

    async def __call__(self, plan: Plan, engine: Engine, **settings: Any) -> dict[str, Any]:
        self.plan, self.engine, self.asked = plan, engine, settings
        folder = plan.run_folder or Path("new")
        folder.mkdir(exist_ok=True)
        settings["on_folder"](folder)
        settings["observer"].event("start", "coordinator listens at http://127.0.0.1:9")
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.report


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    stub = Runs()
    monkeypatch.setattr("pydownpour.engines.run", stub)
    monkeypatch.chdir(tmp_path)
    return stub


def test_run_hands_everything_on(runs: Runs) -> None:
    result = invoke("run", "a.py:job", "--shards", "3", "--replicas", "5", "--bind",
                    "127.0.0.1:7000", "--run-folder", "here", "--insecure",
                    PYDOWNPOUR_TOKEN="secret")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert runs.plan == Plan(
        "a.py:job", 3, 5, Path("here"), bind="127.0.0.1:7000", options=("--insecure",)
    )
    assert isinstance(runs.engine, LocalEngine)
    assert runs.asked["access"].token == "secret"
    assert "run folder   here" in result.stdout
    assert "x: done" in result.stdout


def test_json_is_the_last_line_and_all_of_standard_output(runs: Runs) -> None:
    result = invoke("run", "a.py", "--json")
    assert json.loads(result.stdout) == runs.report
    assert result.stdout.count("\n") == 1
    assert "coordinator listens" in result.stderr


def test_a_failed_job_prints_its_report_too(runs: Runs) -> None:
    report = {"state": "failed", "reason": "the shards ran away"}
    runs.error = JobFailed("the shards ran away", report=report)
    result = invoke("run", "a.py", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == report
    assert result.stderr.splitlines()[-1] == "pydownpour: the shards ran away"


def test_the_last_line_is_a_report_also_when_a_run_fails_or_is_interrupted(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for whoever asks in an impossible way, and before there is a report."""
    runs.error = ConfigError("no job in a.py")
    result = invoke("run", "a.py", "--json")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "pydownpour: no job in a.py")
    assert json.loads(result.stdout) == {"state": "failed", "reason": "no job in a.py"}

    def stop(number: int, **files: str) -> Callable[..., None]:
        def run(work: Callable[[], Coroutine[Any, Any, Any]], **settings: object) -> None:
            runs.error = None
            asyncio.run(work())
            for name, text in files.items():
                Path(f"{number}/{name}").write_text(text)
            raise failures.Interrupted("stopped by SIGINT")

        return run

    kept = {"report.json": '{"job": "x", "state": "done", "loss": 0.5}'}
    place = {"loss": 0.25, "elsewhere": {"parameters.safetensors": "/spare/p"}}
    elsewhere = {"report.json": json.dumps(place)}
    for number, files, words, loss in (
        (1, {}, "neither parameters nor a report were kept; logs are in 1", None),
        (2, kept, "no parameters were kept; the report is in 2", 0.5),
        (3, {**kept, "parameters.safetensors": "x"}, "what was trained is in 3", 0.5),
        (4, elsewhere, "what was trained is in /spare/p", 0.25),
    ):
        monkeypatch.setattr("pydownpour.cli.loop.run", stop(number, **files))
        result = invoke("run", "a.py", "--json", "--run-folder", str(number))
        assert result.exit_code == 130
        assert f"pydownpour: stopped by SIGINT; {words}" in result.stderr
        assert json.loads(result.stdout).get("loss") == loss


def test_the_demo_is_the_digits_example_on_two_shards_and_four_replicas(runs: Runs) -> None:
    assert invoke("demo").exit_code == 0
    assert (runs.plan.shards, runs.plan.replicas) == (2, 4)
    assert Path(runs.plan.file).name == "digits.py"
