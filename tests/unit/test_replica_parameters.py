"""A replica's parameters: arrays that are written into, in a mapping that stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

from pydownpour.errors import ParameterError
from pydownpour.replica.parameters import Parameters


def parameters() -> Parameters:
    return Parameters({"w": np.zeros(2), "b": np.ones(1)})


def test_an_array_cannot_be_replaced_and_the_words_say_what_to_do() -> None:
    here = parameters()
    array = here["w"]
    with pytest.raises(ParameterError, match=r"write into its own: parameters\['w'\]\[\.\.\.\] ="):
        here["w"] = np.ones(2)
    here["w"][...] = 3.0
    here["w"] += 1.0
    assert here["w"] is array
    assert array.tolist() == [4.0, 4.0]


CHANGES: list[Callable[[Any], object]] = [
    lambda p: p.__setitem__("new", np.zeros(1)),
    lambda p: p.__delitem__("w"),
    lambda p: p.update(w=np.ones(2)),
    lambda p: p.setdefault("new", np.ones(2)),
    lambda p: p.pop("w"),
    lambda p: p.popitem(),
    lambda p: p.clear(),
    lambda p: p.__ior__({"w": np.ones(2)}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_no_array_can_be_added_replaced_or_removed(change: Callable[[Any], object]) -> None:
    here = parameters()
    with pytest.raises(ParameterError, match="fixed when it started"):
        change(here)
    assert {name: array.tolist() for name, array in here.items()} == {"w": [0.0, 0.0], "b": [1.0]}


def through_a_process_pool(here: Parameters) -> dict[str, Any]:
    """What a worker process is given."""
    twin: dict[str, Any] = ForkingPickler.loads(ForkingPickler.dumps(here))
    return twin


COPIERS: list[Callable[[Parameters], dict[str, Any]]] = [
    dict,
    copy.copy,
    copy.deepcopy,
    dict.copy,
    through_a_process_pool,
]


@pytest.mark.parametrize("copier", COPIERS)
def test_copies_are_plain_dicts(copier: Callable[[Parameters], dict[str, Any]]) -> None:
    here = parameters()
    twin = copier(here)
    assert type(twin) is dict
    twin["w"] = np.ones(2)
    assert here["w"].tolist() == [0.0, 0.0]
    assert (twin["b"] is here["b"]) == (copier not in (copy.deepcopy, through_a_process_pool))
