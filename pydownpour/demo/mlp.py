"""A two-layer perceptron in plain numpy: the gradients that the examples train with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]
Parameters: TypeAlias = Mapping[str, Floats]


def init(inputs: int, hidden: int, classes: int, seed: int = 0) -> dict[str, Floats]:
    """Random weights of He's scale and zero biases, the same in every process."""
    rng = np.random.default_rng(seed)

    def weights(rows: int, columns: int) -> Floats:
        scale = np.float32(np.sqrt(2 / rows))
        return rng.standard_normal((rows, columns), dtype=np.float32) * scale

    return {
        "w1": weights(inputs, hidden),
        "b1": np.zeros(hidden, np.float32),
        "w2": weights(hidden, classes),
        "b2": np.zeros(classes, np.float32),
    }


def value_and_grad(p: Parameters, x: Floats, y: Labels) -> tuple[float, dict[str, Floats]]:
    """Mean cross-entropy of a batch, and its gradient with respect to every parameter."""
    hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
    scores = hidden @ p["w2"] + p["b2"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(chances[rows, y] + 1e-12).mean())

    chances[rows, y] -= 1  # now the gradient with respect to the scores
    chances /= len(y)
    back = (chances @ p["w2"].T) * (hidden > 0)
    return loss, {
        "w1": x.T @ back,
        "b1": back.sum(axis=0),
        "w2": hidden.T @ chances,
        "b2": chances.sum(axis=0),
    }


def accuracy(p: Parameters, x: Floats, y: Labels) -> float:
    """Fraction of samples whose highest score is the right class."""
    scores = np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]
    return float((scores.argmax(axis=1) == y).mean())
