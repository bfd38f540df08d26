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
Layer: TypeAlias = tuple[Floats, Floats]
"""Its inputs, and the loss's derivatives by what it makes of them; a sample in each row."""


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


def value_and_layers(p: Parameters, x: Floats, y: Labels) -> tuple[float, dict[str, Layer]]:
    """Mean cross-entropy of a batch, and what the gradients of both layers are made of."""
    hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
    scores = hidden @ p["w2"] + p["b2"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(chances[rows, y] + 1e-12).mean())

    chances[rows, y] -= 1  # now the gradient with respect to the scores
    chances /= len(y)
    back = (chances @ p["w2"].T) * (hidden > 0)
    return loss, {"1": (x, back), "2": (hidden, chances)}


def value_and_grad(p: Parameters, x: Floats, y: Labels) -> tuple[float, dict[str, Floats]]:
    """Mean cross-entropy of a batch, and its gradient with respect to every parameter."""
    loss, layers = value_and_layers(p, x, y)
    grads = {}
    for name, (inputs, derivatives) in layers.items():
        grads[f"w{name}"] = inputs.T @ derivatives
        grads[f"b{name}"] = derivatives.sum(axis=0)
    return loss, grads


def accuracy(p: Parameters, x: Floats, y: Labels) -> float:
    """Fraction of samples whose highest score is the right class."""
    scores = np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]
    return float((scores.argmax(axis=1) == y).mean())
