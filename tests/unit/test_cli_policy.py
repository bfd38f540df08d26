"""``pydownpour policy``: options from a policy's own fields, and what wrong ones say."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pydownpour.cli import loop
from pydownpour.cli.app import app
from pydownpour.cli.failures import Interrupted
from pydownpour.cli.policy import describe, options_of, settings_of
from pydownpour.errors import ConfigError
from pydownpour.policy import POLICIES, Policy
from pydownpour.policy.downpour import Downpour
from pydownpour.policy.hard_sync import HardSync
from pydownpour.wire.messages import PolicyEntry, PolicyStatus
from tests.fakes.policies import EveryFew

URL = "http://127.0.0.1:1"
JOB = """
import dataclasses
import pydownpour as dp
from tests.fakes.policies import EveryFew

job = dp.Job(
    parameters={"w": [1.0]},
    optimizer=dp.SGD(1.0),
    policy=dp.Phases((dp.Downpour(), 10), EveryFew()),
)
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", *arguments], env={"PYDOWNPOUR_TOKEN": ""})


@pytest.mark.parametrize("kind", [*POLICIES.values(), EveryFew], ids=lambda kind: kind.name)
def test_every_setting_of_a_policy_is_an_option(kind: type[Policy]) -> None:
    settings = kind().to_wire()
    assert {option.name for option in options_of(kind)} == settings.keys() - {"name"}
    assert settings_of(kind, []) == settings


def test_settings_are_the_fields_types() -> None:
    words = "--push-every 3 --no-overlap --local-rate 0.5 --land keep".split()
    expected = Downpour(push_every=3, overlap=False, local_rate=0.5, land="keep")
    assert settings_of(Downpour, words) == expected.to_wire()
    assert settings_of(Downpour, ["--local-rate", "none"]) == Downpour().to_wire()
    assert settings_of(HardSync, ["--ordered", "--combine=sum"])["ordered"] is True
    assert settings_of(EveryFew, ["--staleness-power", "0"])["staleness_power"] == 0.0


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (["--push-every", "0"], ConfigError, "push_every=0 must be at least 1"),
        (["--push-every", "few"], click.BadParameter, "'few' is not a valid integer"),
        (["--push-evry", "1"], click.NoSuchOption, "No such option"),
        (["--land", "hard"], click.BadParameter, "'hard' is not one of"),
        (["more"], click.UsageError, "unexpected extra argument"),
    ],
)
def test_wrong_settings(words: list[str], error: type[Exception], match: str) -> None:
    with pytest.raises(error) as caught:
        settings_of(Downpour, words)
    said = caught.value.format_message() if isinstance(caught.value, click.ClickException) else ""
    assert match in (said or str(caught.value))


def test_help_lists_the_policies_with_their_settings() -> None:
    output = " ".join(invoke("--help").output.split())
    for words in (*POLICIES, "--push-every INTEGER", "--combine mean|sum", "--local-rate FLOAT|"):
        assert words in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nix"], "there is no policy 'nix'; known are "),
        (["nix"], "and with --job FILE the job file's own"),
        (["hardsync", "--replicas", "0"], "replicas=0 must be at least 1"),
        (["hardsync", "--replicas", "x"], "'x' is not a valid integer"),
        (["hardsync", "--slack", "3"], "No such option '--slack'"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_asks_nobody(arguments: list[str], words: str) -> None:
    result = invoke(URL, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_class_of_the_job_file_s_own(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    result = invoke(URL, "everyfew", "--count", "0.5", "--job", str(path))
    assert "'0.5' is not a valid integer" in result.stderr
    result = invoke(URL, "nix", "--job", str(path))
    assert "known are " in result.stderr
    assert "everyfew" in result.stderr
    result = invoke(URL, "everyfew", "--count", "5", "--job", str(path))
    assert (result.exit_code, "cannot connect to" in result.stderr) == (1, True)


def test_nobody_there_is_one_line() -> None:
    result = invoke(URL)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"pydownpour: cannot connect to {URL}")
    assert len(result.stderr.splitlines()) == 1


def test_ctrl_c_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(work: object, *, hard: bool) -> None:
        raise Interrupted(loop.words(2))

    monkeypatch.setattr(loop, "run", interrupted)
    result = invoke(URL, "downpour")
    assert (result.exit_code, result.stderr) == (130, "pydownpour: stopped by SIGINT\n")


def test_a_version_is_told_in_words() -> None:
    entry = PolicyEntry(version=2, settings=HardSync(combine="sum").to_wire())
    status = PolicyStatus(entry=entry, at_s=12.34, samples=10_240, by="me", plan="phase 2 of 3")
    assert describe(status).splitlines() == [
        "hardsync: combine=sum, by_samples=False, ordered=False, replicas=1, reduce=shards",
        "  version 2, since 12.3 s and 10,240 samples of the job, by me",
        "  phase 2 of 3",
    ]
