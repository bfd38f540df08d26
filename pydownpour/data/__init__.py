"""Real data to start with: digits in the package, and whole MNIST where it is at hand.

Nothing here downloads. ``digits()`` works everywhere; ``mnist()`` says how to get its file.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydownpour.errors import ConfigError

Split = tuple[NDArray[Any], NDArray[np.int64], NDArray[Any], NDArray[np.int64]]
"""(x_train, y_train, x_test, y_test): one row per image, labels 0 to 9."""

MNIST_FILE: Final = "mnist.npz"
MNIST_SHA256: Final = "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64"


def digits() -> Split:
    """UCI handwritten digits: 1,797 real images, shipped with the package.

    The split is fixed and stratified: 1,347 to train, 450 to test, about a quarter of each class.

    Shapes:
        x_train (1347, 64), x_test (450, 64): float32 from 0 to 1; y: int64.

    Raises:
        ConfigError: the file in the package is damaged.

    Source:
        Alpaydin and Kaynak 1998, CC BY 4.0; README.md beside this file has the attribution.
    """
    source = resources.files(__package__).joinpath("digits.npz")
    with resources.as_file(source) as path:
        arrays = _load(path, ("x", "y", "test"))
    x = arrays["x"].reshape(len(arrays["x"]), -1).astype(np.float32) / np.float32(16)
    y, test = arrays["y"].astype(np.int64), arrays["test"]
    return x[~test], y[~test], x[test], y[test]


def mnist(path: str | os.PathLike[str] | None = None) -> Split:
    """Whole MNIST, 70,000 images of 28x28, from a file ``mnist.npz`` that must be there already.

    Args:
        path: The file or its folder. None: the first folder that has it of PYDOWNPOUR_DATA,
            ../shared/data from the current folder, ../shared/data from the checkout.

    Shapes:
        x_train (60000, 784), x_test (10000, 784): uint8 from 0 to 255; y: int64. Scale each batch
        (``x[batch].astype(np.float32) / 255``): all of it as float32 would be 220 MB a process.

    Raises:
        ConfigError: the file is missing (the message says how to get it) or is another one.

    Source:
        LeCun, Cortes and Burges 1998.
    """
    file = find_mnist(path)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != MNIST_SHA256:
        raise ConfigError(
            f"{file} is not the MNIST file we know: its SHA-256 is {digest}, "
            f"expected {MNIST_SHA256}; get it again"
        )
    arrays = _load(file, ("x_train", "y_train", "x_test", "y_test"))
    return (
        arrays["x_train"].reshape(-1, 784),
        arrays["y_train"].astype(np.int64),
        arrays["x_test"].reshape(-1, 784),
        arrays["y_test"].astype(np.int64),
    )


def find_mnist(path: str | os.PathLike[str] | None = None) -> Path:
    """Where ``mnist.npz`` is.

    Raises:
        ConfigError: nowhere; lists the places that were tried.
    """
    tried = []
    for place in _places(path):
        file = place / MNIST_FILE if place.is_dir() or place.suffix != ".npz" else place
        if file.is_file():
            return file
        tried.append(str(file))
    raise ConfigError(
        f"no {MNIST_FILE}; looked for {', '.join(tried)}. It is the file Keras distributes "
        "(11 MB, arrays x_train, y_train, x_test, y_test): get it once with "
        "keras.datasets.mnist.load_data() or from a machine that has it, and set PYDOWNPOUR_DATA "
        "to its folder"
    )


def _places(path: str | os.PathLike[str] | None) -> Iterator[Path]:
    if path is not None:
        yield Path(path)
        return
    if named := os.environ.get("PYDOWNPOUR_DATA"):
        yield Path(named)
    yield Path.cwd().parent / "shared" / "data"
    yield Path(__file__).resolve().parents[3] / "shared" / "data"


def _load(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
