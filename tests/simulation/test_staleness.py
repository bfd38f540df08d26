"""Staleness is counted from the parameters that a gradient is of, and scales it as promised."""

from __future__ import annotations

import pytest

from tests.simulation import journals


@pytest.mark.parametrize("plan", ["reset", "kill"])
def test_each_gradient_is_divided_by_its_own_staleness(plan: str) -> None:
    for seed in range(3):
        world = journals.divided(seed, plan).run()
        assert (world.checks.violations, world.failure) == ([], ""), f"seed {seed}"
        check = journals.check_of(world)
        assert check.stale > 30, "little was divided"


def test_what_is_taken_again_is_as_stale_as_what_it_was() -> None:
    repeated = 0
    for seed in range(2):
        world = journals.repeating(seed, "kill").run()
        assert (world.checks.violations, world.failure) == ([], ""), f"seed {seed}"
        repeated += journals.check_of(world).repeated
    assert repeated > 100
