"""What a user declares."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

import numpy as np
import pytest

from pydownpour import limits
from pydownpour.codecs import Codec, Int8
from pydownpour.errors import ConfigError, UnsupportedArray
from pydownpour.job import Job, Work
from pydownpour.optimizers import SGD, Clip, chain
from pydownpour.policy.downpour import Downpour
from pydownpour.storage import safetensors


def make_job(**settings: Any) -> Job:
    given: dict[str, Any] = {"parameters": {"w": np.zeros((2, 3), np.float32)}}
    return Job(**{**given, "optimizer": SGD(lr=0.5), **settings})


# -- Work ------------------------------------------------------------------------------------------


def test_units_and_samples() -> None:
    work = Work(1000, unit=256, passes=3)
    assert (work.units, work.samples) == (4, 3000)
    assert Work(1024, unit=256).units == 4
    assert Work(1, unit=256).units == 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_pass_has_every_sample_once(shuffle: bool) -> None:
    work = Work(1000, unit=64, passes=2, shuffle=shuffle)
    for number in range(2):
        cuts = [(s, min(s + 64, 1000)) for s in range(0, 1000, 64)]
        parts = [work.indices(number, *cut) for cut in cuts]
        assert all(part.dtype == np.int64 for part in parts)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


def test_orders_depend_on_seed_and_pass_and_on_nothing_else() -> None:
    work = Work(100, passes=2, seed=7)
    order = work.indices(1, 0, 100)
    assert np.array_equal(order, dataclasses.replace(work).indices(1, 0, 100))
    assert not np.array_equal(order, work.indices(0, 0, 100))
    assert not np.array_equal(order, dataclasses.replace(work, seed=8).indices(1, 0, 100))


def test_without_shuffle_the_order_is_the_datas() -> None:
    assert Work(10, shuffle=False).indices(0, 3, 6).tolist() == [3, 4, 5]


def test_an_order_cannot_be_written_through_a_slice_of_it() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Work(100).indices(0, 0, 10)[0] = 5


@pytest.mark.parametrize("place", [(1, 0, 5), (-1, 0, 5), (0, 5, 4), (0, 0, 11), (0, -1, 5)])
def test_places_outside_the_work_are_refused(place: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="outside 1 passes of 10 samples"):
        Work(10).indices(*place)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"len": 0}, "len=0 must be at least 1"),
        ({"len": 10, "unit": 0}, "unit=0 must be at least 1"),
        ({"len": 10, "passes": 0}, "passes=0 must be at least 1"),
        ({"len": 10, "seed": -1}, "seed=-1 must be at least 0"),
        ({"len": 10.5}, "len=10.5 must be a whole number"),
        ({"len": True}, "len=True must be a whole number"),
        ({"len": 2 * limits.UNITS_MAX, "unit": 1}, r"\(UNITS_MAX\); use a unit of at least 2"),
        ({"len": 10, "shuffle": "no"}, "shuffle='no' must be True or False"),
    ],
)
def test_impossible_work_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Work(**settings)


def test_numpy_numbers_become_python_ones() -> None:
    work = Work(np.int64(10), shuffle=np.bool_(False))  # type: ignore[arg-type]
    assert type(work.len) is int
    assert work.shuffle is False


@dataclasses.dataclass(frozen=True)
class MyCodec(Codec):
    """The core cannot run it."""

    name = "mine"


# -- Job -------------------------------------------------------------------------------------------


def test_defaults() -> None:
    job = make_job()
    assert (job.name, job.policy, job.data, job.wire_dtype) == ("job", Downpour(), None, "float32")
    assert job.layout.len == 6
    assert job.evaluation is None
    assert "6 parameters" in repr(job)


def test_a_codec() -> None:
    assert make_job().codec is None
    assert make_job(codec=Int8(block=64)).codec == Int8(64)


def test_decorators_return_the_function_unchanged() -> None:
    job = make_job()

    async def train(replica: object) -> None:
        """Never called."""

    def accuracy(parameters: object) -> float:
        return 0.0

    assert job.replica(train) is train
    assert job.evaluate(accuracy) is accuracy
    assert job.train is train
    assert job.evaluation is accuracy


def test_a_job_without_a_replica_function_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"a job file without a replica function.*@job\.replica"):
        make_job().train  # noqa: B018


def test_a_second_function_and_no_function_are_refused() -> None:
    job = make_job()
    job.replica(print)
    with pytest.raises(ConfigError, match="has its replica function already"):
        job.replica(print)
    with pytest.raises(ConfigError, match="belongs above a function"):
        job.evaluate(0.5)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parameters": {}}, "parameters is empty"),
        ({"parameters": [1.0]}, "must be a mapping"),
        ({"optimizer": "adagrad"}, "optimizer='adagrad' must be one of ours"),
        ({"optimizer": Clip(1.0)}, "put it before a rule"),
        ({"policy": "downpour"}, "policy='downpour' must be a Policy"),
        ({"data": 100}, "data=100 must be a Work"),
        ({"optimizer": SGD(lr=1e300)}, "must be a finite f32"),
        ({"optimizer": chain(Clip(1e-60), SGD(lr=1.0))}, "must be a finite f32"),
        ({"name": "a/b"}, "name='a/b' must be 1 to 64"),
        ({"name": ""}, "must be 1 to 64"),
        ({"wire_dtype": "int8"}, "wire_dtype='int8': unknown"),
        ({"max_norm": 0}, r"max_norm=0 is out of range; choose above 0 and up to 1e\+38"),
        ({"max_norm": float("inf")}, "max_norm=inf is out of range"),
        ({"max_norm": "1"}, "max_norm='1' must be a number"),
        ({"codec": "int8"}, r"codec='int8' must be a Codec, for example dp.Int8\(\)"),
        ({"codec": Int8(), "wire_dtype": "float16"}, "wire_dtype='float16' would not be used"),
        ({"codec": MyCodec()}, 'codec "mine" is unknown; known are int8'),
    ],
)
def test_impossible_jobs_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_job(**settings)


def test_integer_parameters_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedArray, match="integers have no gradient"):
        make_job(parameters={"steps": np.zeros(3, np.int64)})


class Tensor:
    """As a framework's: it is an array only where numpy may look at it."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("call detach() first")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"w": np.zeros(2), "b": np.zeros(1)}, r"'x' is a dict: names are flat; .* 'x\.w' for"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), r"'x' is a masked array.*\.filled\(0\)"),
        (None, "parameter 'x' is None"),
        ([np.zeros(2), np.zeros(3)], "'x' is a list that numpy cannot read as an array"),
        (Tensor(), r"'x' is a Tensor that numpy cannot read as an array: call detach\(\)"),
    ],
)
def test_what_is_no_array_is_refused_with_the_advice(value: Any, words: str) -> None:
    with pytest.raises(UnsupportedArray, match=words):
        make_job(parameters={"good": np.zeros(1), "x": value})


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="a name that is no text"):
        make_job(parameters={"half \ud800": np.zeros(1)})


def test_parameters_are_converted_once_and_arrays_are_not_copied() -> None:
    class Counted:
        reads = 0

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            self.reads += 1
            return np.ones(2, np.float32)

    counted = Counted()
    array = np.zeros(3, np.float32)
    job = make_job(parameters={"a": array, "c": counted})
    assert counted.reads == 1
    assert job.parameters["a"] is array


def test_arrays_that_could_not_travel_are_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = {f"{i:0100}": np.zeros(1) for i in range(100)}
    assert len(make_job(parameters=arrays).layout.arrays) == 100
    monkeypatch.setattr(limits, "LAYOUT_SIZE_MAX", 10_000)
    words = r"100 parameter arrays are \d{5} bytes, the limit is 10000 \(LAYOUT_SIZE_MAX\)"
    with pytest.raises(ConfigError, match=words):
        make_job(parameters=arrays)


def test_arrays_that_could_not_be_written_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {f"{i:0100}": np.zeros(1) for i in range(100)}
    small = limits.Limits(stored_header_size_max=10_000, stored_metadata_size_max=0)
    check = functools.partial(safetensors.check_layout, limits=small)
    monkeypatch.setattr(safetensors, "check_layout", check)
    words = r"100 arrays need a header of \d{5} bytes in a safetensors file, the limit is 10000"
    with pytest.raises(ConfigError, match=words):
        make_job(parameters=arrays)


def test_odd_arrays_are_parameters_too() -> None:
    job = make_job(
        parameters={
            "scalar": np.float32(1.0),
            "empty": np.zeros((0, 4), np.float32),
            "fortran": np.asfortranarray(np.ones((3, 4), np.float32)),
            "strided": np.arange(10, dtype=np.float64)[::2],
            "half": np.ones(2, np.float16),
        }
    )
    assert {a.name: a.shape for a in job.layout.arrays}["scalar"] == ()
    assert job.layout.len == 1 + 0 + 12 + 5 + 2


def test_a_chain_is_an_optimizer() -> None:
    job = make_job(optimizer=chain(Clip(1.0), SGD(lr=1.0)))
    assert job.shard_optimizer is job.optimizer
    assert job.shard_optimizer.parts()[0][0] == "clip"


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a job file puts its folder on the path; the next test must not see it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
