"""Wrong things get words: at join, in a step, on the command line, on the disk."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import pydownpour as dp
from pydownpour import limits
from pydownpour.errors import (
    AuthError,
    ConfigError,
    GradientMismatch,
    LayoutMismatch,
    ParameterError,
    UnsupportedArray,
)
from pydownpour.net.access import Access, Bind
from pydownpour.shard.service import serve_shard
from pydownpour.wire import messages
from pydownpour.wire.messages import JobLayout
from tests.chaos.processes import ByHand, Command, status, until
from tests.e2e.stage import Stage
from tests.e2e.stranger import Stranger, dismiss

GOOD = """
import numpy as np
import pydownpour as dp
job = dp.Job(
    parameters={"a": np.zeros(3, np.float32), "w": np.zeros((4, 5), np.float32)},
    optimizer=dp.SGD(lr=1.0),
    data=dp.Work(4, unit=1),
)
@job.replica
async def train(replica):
    async for unit in replica.work():
        await replica.step({name: np.ones_like(p) for name, p in replica.parameters.items()})
"""

WAITING = GOOD.replace(
    "async for",
    "import os, time\n    while not os.path.exists('go'): time.sleep(0.01)\n    async for",
)
"""The same, and nothing is done before there is a file ``go``."""


QUICK = limits.Limits(heartbeat_s=0.05)
"""The end of a job is heard of sooner."""


def job_of(parameters: dict[str, Any], **settings: Any) -> dp.Job:
    return dp.Job(parameters=parameters, optimizer=dp.SGD(lr=1.0), **settings)


# -- at join ---------------------------------------------------------------------------------------


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A running job with a token, and a member that does nothing."""
    parameters = {"a": np.zeros(3, np.float32), "w": np.zeros((4, 5), np.float32)}
    access = Access(token="open sesame")
    async with Stage(
        job_of(parameters), tmp_path / "run", shards=1, access=access, limits=QUICK
    ) as stage:
        await Stranger.join(stage.url, access)
        yield stage
        await dismiss(stage.url, access)


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        ({"a": np.zeros(3), "w": np.zeros((4, 6))}, "'a' is a float64"),
        (
            {"a": np.zeros(3, np.float32), "w": np.zeros((5, 4), np.float32)},
            r"'w' is w float32\[5, 4\] at .*, but w float32\[4, 5\] in the job",
        ),
        ({"w": np.zeros((4, 5), np.float32)}, r"lacks the job's parameter a float32\[3\]"),
        (
            {
                "a": np.zeros(3, np.float32),
                "later": np.zeros(1, np.float32),
                "w": np.zeros((4, 5), np.float32),
            },
            r"has a parameter the job does not: later float32\[1\]; .* add it to the job file",
        ),
    ],
    ids=["dtype", "shape", "missing", "added later"],
)
async def test_other_parameters_are_refused_and_the_first_array_is_named(
    stage: Stage, mine: dict[str, Any], words: str
) -> None:
    with pytest.raises(LayoutMismatch, match=words):
        async with dp.join(stage.url, mine, token="open sesame"):
            pass


async def test_sixty_thousand_arrays_with_long_names_are_no_problem(tmp_path: Path) -> None:
    one, arrays = np.ones(1, np.float32), 60_000
    parameters = {f"encoder.{'blocks.' * 12}{i:08}.weight": one for i in range(arrays)}
    async with Stage(job_of(parameters), tmp_path / "run", shards=1, limits=QUICK) as stage:
        assert len(messages.encode(JobLayout(arrays=stage.job.layout.entries()))) > 8_000_000
        async with dp.join(stage.url) as replica:
            await replica.step(parameters)
    final = stage.parameters()
    assert len(final) == arrays
    assert sum(float(array.sum()) for array in final.values()) == 0.0


@pytest.mark.parametrize(
    ("token", "words"), [(None, "needs a token: give --token-file, set"), ("guess", "wrong token")]
)
async def test_a_wrong_token_is_refused_for_replica_and_shard(
    stage: Stage, token: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYDOWNPOUR_TOKEN", raising=False)
    with pytest.raises(AuthError, match=words):
        async with dp.join(stage.url, token=token):
            pass
    with pytest.raises(AuthError, match=words):
        await serve_shard(
            coordinator=stage.url, bind=Bind(), access=Access(token=token), announce=print
        )


async def test_a_token_is_taken_as_a_file_holds_it_and_one_no_header_carries_is_refused(
    stage: Stage,
) -> None:
    async with dp.join(stage.url, token=" open sesame\n") as replica:
        assert replica.id
    with pytest.raises(ConfigError, match="the token must hold one line of at most 1000 printable"):
        dp.join(stage.url, token="open\nsesame")


async def test_an_unknown_protocol_version_names_both_ranges(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="speaks protocol 7 to 9, this coordinator 1 to 1"):
        await Stranger.join(stage.url, stage.access, protocol_min=7, protocol_max=9)


async def test_one_shard_too_many_is_refused_in_words(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="has that place; start its coordinator with more"):
        await serve_shard(
            coordinator=stage.url, bind=Bind(), access=stage.access, announce=lambda url: None
        )


# -- in a step -------------------------------------------------------------------------------------


async def test_gradients_of_any_order_and_strides_land_where_they_belong(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    wide = np.zeros((8, 12), np.float32)
    wide[::2, ::2] = values
    gradients: dict[str, Any] = {
        "backward": values[::-1, ::-1],
        "double": values.astype(np.float64),
        "empty": np.zeros((3, 0), np.float32),
        "fortran": np.asfortranarray(values),
        "list": values.tolist(),
        "scalar": np.float32(2.5),
        "strided": wide[::2, ::2],
        "turned": values.T,
    }
    shapes = {name: np.shape(gradient) for name, gradient in gradients.items()}
    job = job_of(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, data=dp.Work(1)
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for _ in replica.work():
            await replica.step(gradients)

    async with Stage(job, tmp_path / "run", shards=1, limits=QUICK) as stage:
        await stage.replica()
    final = stage.parameters()
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(final[name], -np.asarray(gradient, np.float32))


@pytest.mark.parametrize(
    ("gradient", "kind", "words"),
    [
        (
            np.ones(3, int),
            UnsupportedArray,
            r"gradient 'w' has dtype int64: .* \.astype\(np\.float",
        ),
        (np.ones(3, np.complex64), UnsupportedArray, "complex numbers are not supported"),
        (np.ones(4, "f"), GradientMismatch, r"gradient 'w' has shape \[4\], its parameter has \[3"),
        ([1.0, None, 2.0], UnsupportedArray, "gradient 'w' has .* object arrays cannot travel"),
        (np.ma.ones(3), UnsupportedArray, "gradient 'w' is a masked array, and its mask would be"),
        ({"x": np.ones(3)}, UnsupportedArray, "gradient 'w' is a dict: names are flat; .* 'w.x'"),
    ],
    ids=["int", "complex", "shape", "object", "masked", "nested"],
)
async def test_a_gradient_that_cannot_be_one_is_refused_and_the_loop_may_go_on(
    tmp_path: Path, gradient: Any, kind: type[Exception], words: str
) -> None:
    async with Stage(
        job_of({"w": np.zeros(3, np.float32)}), tmp_path / "run", shards=1, limits=QUICK
    ) as stage:
        async with dp.join(stage.url) as replica:
            with pytest.raises(kind, match=words) as refused:
                await replica.step({"w": gradient})
            assert isinstance(refused.value, ParameterError), "theirs, so their lines are shown"
            files = [frame.filename for frame in traceback.extract_tb(refused.value.__traceback__)]
            assert files[0] == __file__
            assert len(files) <= 3, "the caller's line, and hardly any of ours"
            await replica.step({"w": np.ones(3)})
    np.testing.assert_array_equal(stage.parameters()["w"], -1.0)


@pytest.mark.parametrize(
    ("gradients", "words"),
    [
        ([np.ones(3)], "a mapping from names to gradients, not a list"),
        (
            {"layer": {"w": np.ones(3)}},
            r"missing 'layer\.w'; .* join them with dots, 'layer\.w' for",
        ),
    ],
)
async def test_gradients_that_are_no_flat_mapping_are_refused_with_the_advice(
    tmp_path: Path, gradients: Any, words: str
) -> None:
    parameters = {"layer.w": np.zeros(3, np.float32)}
    async with Stage(job_of(parameters), tmp_path / "run", shards=1, limits=QUICK) as stage:
        async with dp.join(stage.url) as replica:
            with pytest.raises(ParameterError, match=words):
                await replica.step(gradients)
            with pytest.raises(ConfigError, match=r"samples=1\.5 must be a whole number"):
                await replica.step({"layer.w": None}, samples=1.5)  # type: ignore[arg-type]
            with pytest.raises(
                ParameterError, match=r"step\(loss=\.\.\.\) takes one number, not a"
            ):
                await replica.step({"layer.w": None}, loss=np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="url=None must be what the coordinator printed"):
        dp.join(None)  # type: ignore[arg-type]


async def test_none_is_no_gradient_and_a_list_is_converted_once(tmp_path: Path) -> None:
    class Counted:
        reads = 0

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            self.reads += 1
            return np.ones(2, np.float32)

    counted = Counted()
    parameters = {name: np.zeros(2, np.float32) for name in ("counted", "list", "none")}
    async with Stage(job_of(parameters), tmp_path / "run", shards=1, limits=QUICK) as stage:
        async with dp.join(stage.url) as replica:
            await replica.step({"counted": counted, "list": [2.0, 3.0], "none": None})
            assert counted.reads == 1
    final = stage.parameters()
    assert final["counted"].tolist() == [-1.0, -1.0]
    assert final["list"].tolist() == [-2.0, -3.0]
    assert final["none"].tolist() == [0.0, 0.0]


# -- on the command line ---------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of job files, each wrong in one way but ``good.py``."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "good.py").write_text(GOOD)
    (folder / "empty.py").write_text("x = 1\n")
    (folder / "idle.py").write_text(GOOD.partition("@job.replica")[0])
    (folder / "ints.py").write_text(GOOD.replace("np.zeros(3, np.float32)", "np.zeros(3, int)"))
    (folder / "broken.py").write_text("def f(:\n")
    return folder


WRONG: dict[str, tuple[str, str]] = {
    "no job": ("run empty.py", r"no job in empty\.py: .* job = dp\.Job\("),
    "no file": ("run nothing.py", r"no job file 'nothing\.py'"),
    "no function": ("run idle.py", r"without a replica function; put @job\.replica above"),
    "no such job": ("run good.py:other", r"no 'other' in good\.py; its jobs are job"),
    "too many shards": ("run good.py --shards 9", r"9 shards, but 23 parameters fill only 2 fr"),
    "public": ("run good.py --bind 0.0.0.0:0", r"without TLS .* --insecure"),
    "public role": ("coordinator good.py --shards 1 --bind 0.0.0.0:0", r"would let others in"),
    "public shard": (
        "shard --coordinator http://127.0.0.1:9 --bind 0.0.0.0:0",
        r"let others in|ad",
    ),
    "bad bind": ("run good.py --bind 127.0.0.1:http", r"port must be a number from 0 to 65535"),
    "a port for a host": ("run good.py --bind 7001", r"a number alone is no address; .* :7001"),
    "bad URL": ("replica good.py --coordinator 127.0.0.1:9", r"must start with http://"),
    "token file": ("run good.py --token-file none.txt", r"cannot read the token file none\.txt"),
    "two tokens": ("run good.py --token-file x --no-token", r"contradict each other; give one"),
    "half TLS": ("run good.py --tls-cert cert.pem", r"needs both --tls-cert and --tls-key"),
    "run folder": ("run good.py --run-folder good.py/x", r"cannot make the run folder good\.py/x"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_is_one_line_and_exit_code_2(files: Path, case: str) -> None:
    arguments, words = WRONG[case]
    with Command(*arguments.split(), cwd=files) as command:
        assert command.wait() == 2, command.said
        assert command.heard(words)
    check_one_line(command)


def check_one_line(command: Command) -> None:
    """One line of ours on standard error, after what a run says while it starts; no traceback."""
    assert "Traceback" not in command.said
    assert len(command.err) == 1, command.err
    assert command.err[0].startswith("pydownpour: ")


@pytest.mark.parametrize("name", ["ints.py", "broken.py"])
def test_a_wrong_job_file_shows_the_file_s_own_line_and_no_other(files: Path, name: str) -> None:
    with Command("run", name, cwd=files) as command:
        assert command.wait() == 2
    lines = [line for line in command.err if line.lstrip().startswith("File ")]
    assert lines
    assert all(name in line or "pydownpour" in line for line in lines)
    if name == "ints.py":
        assert command.heard("parameter 'a' has dtype int64: integers have no gradient")
    else:
        assert command.heard(r"broken\.py is not valid Python")


@pytest.mark.parametrize(
    "arguments",
    [
        "run good.py --bind 127.0.0.1:{port}",
        "coordinator good.py --shards 1 --bind 127.0.0.1:{port}",
        "shard --coordinator http://127.0.0.1:9 --bind 127.0.0.1:{port}",
    ],
    ids=["run", "coordinator", "shard"],
)
def test_a_port_in_use_is_named(files: Path, arguments: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Command(*arguments.format(port=port).split(), cwd=files) as command:
            assert command.wait() == 2, command.said
            assert command.heard(rf"127\.0\.0\.1:{port} is in use by another process")
    check_one_line(command)


def test_replicas_that_a_job_by_hand_refuses_say_why_and_exit_2(files: Path) -> None:
    (files / "other.py").write_text(GOOD.replace("(4, 5)", "(5, 4)"))
    (files / "more.py").write_text(GOOD.replace('"w":', '"later": np.zeros(1), "w":'))
    token: dict[str, str] = {}
    wrong = {
        "other.py": (token, r"parameter 'w' is w float32\[5, 4\] at .*, but w float32\[4, 5\]"),
        "more.py": (token, r"a parameter the job does not: later"),
        "good.py": ({"PYDOWNPOUR_TOKEN": "guess"}, r"wrong token"),
    }
    with ByHand(files / "good.py", files, shards=1) as job:
        for name, (env, words) in wrong.items():
            with Command("replica", files / name, "--coordinator", job.url, env=env) as command:
                assert command.wait() == 2, command.said
                assert command.heard(words)
            check_one_line(command)
        nothing = {"PYDOWNPOUR_TOKEN": ""}
        with Command("shard", "--coordinator", job.url, env=nothing) as command:
            assert command.wait() == 2
            assert command.heard("needs a token: give --token-file, set PYDOWNPOUR_TOKEN")
        check_one_line(command)
        assert status(job.url)["replicas"] == []
        assert job.replica().wait() == 0
        assert job.finish()["state"] == "done"


def test_a_folder_that_a_run_has_is_refused_to_another(files: Path) -> None:
    """From its first moment on, long before there is a report."""
    (files / "good.py").write_text(WAITING)
    with Command("run", "good.py", "--run-folder", "run", "--json", cwd=files) as first:
        until(lambda: (files / "run").exists(), "the run folder")
        with Command("run", "good.py", "--run-folder", "run", cwd=files) as second:
            assert second.wait() == 2
            assert second.heard("run folder run already holds a run; name another or move it")
        check_one_line(second)
        (files / "go").touch()
        assert first.wait() == 0, first.said
    assert first.report["samples"] == 4
    assert (files / "run" / "parameters.safetensors").exists()


# -- on the disk -----------------------------------------------------------------------------------

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
from pydownpour.cli import main
main()
"""
"""No file may grow beyond 600 bytes, in this process and its children: as on a full disk."""


def test_a_full_disk_does_not_end_the_training(files: Path) -> None:
    (files / "good.py").write_text(GOOD.replace("(4, 5)", "(40, 50)"))
    run = Command(
        "run", "good.py", "--run-folder", "run", "--json",
        program=(sys.executable, "-c", LIMITED), cwd=files,
    )  # fmt: skip
    with run:
        assert run.wait() == 1, "what it was run for is lost"
    report = run.report
    assert report["state"] == "done"
    assert report["samples"] == 4
    assert "file too large (EFBIG)" in report["storage"]
    assert report["lost"] == ["parameters.safetensors", "report.json"]
    assert run.err[-1].startswith(
        "pydownpour: parameters.safetensors and report.json could not be written anywhere: "
    )
    assert run.heard("run folder: .*EFBIG"), "said while it runs, not only in the report"
    assert not (files / "run" / "parameters.safetensors").exists(), "half a file is no file"
    for line in (files / "run" / "events.jsonl").read_text().splitlines():
        json.loads(line)  # each is whole


@pytest.mark.parametrize("by_hand", [False, True], ids=["run", "by hand"])
def test_what_the_run_folder_cannot_hold_is_kept_elsewhere_and_the_place_is_said(
    files: Path, by_hand: bool
) -> None:
    (files / "spare").mkdir()
    (files / "run").mkdir()
    # What is written to this device finds it full, as it would find a disk.
    (files / "run" / "parameters.safetensors.tmp").symlink_to("/dev/full")
    env = {"TMPDIR": str(files / "spare")}
    if by_hand:
        with ByHand(files / "good.py", files, shards=1, env=env) as job:
            assert job.replica().wait() == 0
            report, told = job.finish(), job.coordinator.err
    else:
        run = Command("run", "good.py", "--run-folder", "run", "--json", cwd=files, env=env)
        with run:
            assert run.wait() == 0, run.said
        report, told = run.report, run.err
    path = report["elsewhere"]["parameters.safetensors"]
    assert path.startswith(str(files / "spare" / "pydownpour-run-"))
    assert safetensors.numpy.load_file(path)["w"].shape == (4, 5)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert report["lost"] == []
    assert told[-1] == (
        "pydownpour: the run folder could not hold everything: parameters.safetensors: no space "
        f"left on device (ENOSPC); parameters.safetensors is in {path}"
    )
    assert json.loads((files / "run" / "report.json").read_text())["elsewhere"]


def test_a_run_folder_that_disappears_does_not_end_the_training(files: Path) -> None:
    (files / "good.py").write_text(WAITING)
    env = {"TMPDIR": str(files)}
    with Command("run", "good.py", "--run-folder", "run", "--json", cwd=files, env=env) as run:
        until(lambda: status(run.url)["replicas"], "a replica")
        os.rename(files / "run", files / "moved")
        (files / "go").touch()
        assert run.wait() == 0, run.said
    assert run.report["samples"] == 4
    assert set(run.report["elsewhere"]) == {"parameters.safetensors", "report.json"}
