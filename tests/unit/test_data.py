"""The data in the package, and finding the data that is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pydownpour import data
from pydownpour.errors import ConfigError


def test_digits_are_complete_and_scaled() -> None:
    x_train, y_train, x_test, y_test = data.digits()
    assert (x_train.shape, x_test.shape) == ((1347, 64), (450, 64))
    assert (y_train.shape, y_test.shape) == ((1347,), (450,))
    for x in (x_train, x_test):
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        assert (x.min(), x.max()) == (0.0, 1.0)
        assert np.array_equal(x * 16, np.round(x * 16))
    assert y_train.dtype == y_test.dtype == np.int64


def test_the_split_is_stratified_and_shares_no_image() -> None:
    x_train, y_train, x_test, y_test = data.digits()
    train, test = np.bincount(y_train, minlength=10), np.bincount(y_test, minlength=10)
    assert (train + test).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.abs(test - (train + test) * 450 / 1797).max() < 1
    rows = {row.tobytes() for row in x_train}
    assert not any(row.tobytes() in rows for row in x_test)


def test_digits_are_the_same_each_time_and_ours_to_change() -> None:
    first = data.digits()
    first[0][:] = 0
    assert data.digits()[0].max() == 1.0


def test_the_attribution_lies_beside_the_data() -> None:
    text = (Path(data.__file__).parent / "README.md").read_text()
    for words in ("Alpaydin", "Kaynak", "CC BY 4.0", "UCI"):
        assert words in text


def test_the_data_is_small() -> None:
    assert (Path(data.__file__).parent / "digits.npz").stat().st_size < 60_000


def test_mnist(data_folder: Path) -> None:
    x_train, y_train, x_test, y_test = data.mnist(data_folder)
    assert (x_train.shape, x_test.shape) == ((60000, 784), (10000, 784))
    assert x_train.dtype == x_test.dtype == np.uint8
    assert np.bincount(y_train).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert y_test[:5].tolist() == [7, 2, 1, 0, 4]


def test_mnist_is_found_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"")
    monkeypatch.setenv("PYDOWNPOUR_DATA", str(tmp_path))
    assert data.find_mnist() == tmp_path / "mnist.npz"


def test_mnist_is_found_beside_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "shared" / "data" / "mnist.npz").write_bytes(b"")
    (tmp_path / "here").mkdir()
    monkeypatch.delenv("PYDOWNPOUR_DATA", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    assert data.find_mnist() == tmp_path / "shared" / "data" / "mnist.npz"


def test_missing_mnist_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as missing:
        data.mnist(tmp_path)
    assert str(tmp_path / "mnist.npz") in str(missing.value)
    assert "PYDOWNPOUR_DATA" in str(missing.value)
    assert "keras.datasets.mnist.load_data()" in str(missing.value)
    with pytest.raises(ConfigError, match=r"elsewhere\.npz"):
        data.mnist(tmp_path / "elsewhere.npz")


def test_another_mnist_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3))
    with pytest.raises(ConfigError, match="SHA-256"):
        data.mnist(tmp_path)


def test_damaged_archives_are_said_in_words(tmp_path: Path) -> None:
    path = tmp_path / "digits.npz"
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(ConfigError, match="cannot read"):
        data._load(path, ("x",))
    np.savez(path, x=np.zeros(3))
    with pytest.raises(ConfigError, match="cannot read"):
        data._load(path, ("y",))
