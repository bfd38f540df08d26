"""The way of one gradient, and of one fetch, as ARCHITECTURE.md tells it: a step is followed."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import pydownpour as dp
from tests.e2e.stage import Stage, ones

TOLD = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()


def ways() -> Iterator[list[str]]:
    """The names of each way, in the order in which they are told."""
    section = TOLD.split("## The way of one gradient")[1].split("\n## ")[0]
    for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL):
        yield re.findall(r"^  (\w+(?:\.\w+)+)", block, re.MULTILINE)


def code_of(name: str) -> CodeType:
    """The code of ``module.Class.method`` or ``module.function``."""
    parts = name.split(".")
    owner: Any = importlib.import_module(".".join(["pydownpour", *parts[:2]]))
    for part in parts[2:]:
        owner = getattr(owner, part)
    code: CodeType = owner.__code__
    return code


async def test_a_step_goes_the_way_that_is_told(tmp_path: Path) -> None:
    gradient, fetch = ways()
    assert len(gradient) > 10
    assert len(fetch) > 5
    names = {code_of(name): name for name in [*gradient, *fetch]}
    job = dp.Job(
        parameters={"w": np.zeros(1000, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.Downpour(overlap=False),
    )
    seen: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (name := names.get(frame.f_code)) is not None:
            seen.append(name)

    @job.replica
    async def train(replica: dp.Replica) -> None:
        await replica.step(ones(job))
        sys.setprofile(note)
        try:
            await replica.step(ones(job))
        finally:
            sys.setprofile(None)

    async with Stage(job, tmp_path / "run", shards=1) as stage:
        await stage.replica()
    for way in (gradient, fetch):
        followed = iter(seen)
        missed = [name for name in way if name not in followed]
        assert missed == [], f"not in this order: {seen}"
