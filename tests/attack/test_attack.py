"""A job goes on, exact, whatever a hostile peer or stranger does to its processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.attack import hostile
from tests.attack.siege import Siege

pytestmark = [pytest.mark.attack, pytest.mark.timeout(300)]

SCALE = 4 if os.environ.get("PYDOWNPOUR_ATTACK") == "long" else 1


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """One job for all acts: what one leaves behind the next one meets."""
    with Siege(tmp_path_factory.mktemp("siege")) as siege:
        yield siege


@pytest.mark.parametrize("act", sorted(hostile.ACTS))
def test_an_act_ends_nobody_and_costs_nothing_that_was_acknowledged(siege: Siege, act: str) -> None:
    asyncio.run(hostile.ACTS[act](siege.target(SCALE)))  # type: ignore[arg-type]
    siege.check(after=act)


def test_a_page_of_another_site_is_refused_and_learns_nothing(siege: Siege) -> None:
    lines = asyncio.run(hostile.a_web_page(siege.target()))
    assert {line.split(b" ")[1] for line in lines} <= {b"400", b"401", b"403", b"421"}, lines


def test_after_all_of_it_every_push_was_counted_once(siege: Siege) -> None:
    siege.check(after="all acts")
    report = siege.end()
    assert report["state"] == "done"
    assert report["pushes"]["applied"] >= sum(
        replica["pushes"]["acked"] for replica in report["replicas"]
    )
