"""Natural-gradient SGD, slowly: F is a matrix of all directions, and its inverse is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
FLOOR = 5e-4


def smoothed(moments: Matrix, alpha: float) -> Matrix:
    """G = F + alpha tr(F) / D I."""
    more = alpha * float(np.trace(moments)) / len(moments)
    return moments + more * np.eye(len(moments))


def precondition(rows: Matrix, moments: Matrix, alpha: float) -> Matrix:
    """X G^-1, as large as X."""
    bent = rows @ np.linalg.inv(smoothed(moments, alpha))
    return np.multiply(bent, np.linalg.norm(rows) / np.linalg.norm(bent))


class Factor:
    """F, and the directions that it tells apart: (rank, width), orthonormal."""

    def __init__(self, basis: Matrix, alpha: float, history: float) -> None:
        self.alpha, self.history = alpha, history
        self.basis = basis
        self.moments = np.zeros((basis.shape[1],) * 2)

    def learn(self, rows: Matrix) -> None:
        """One power step; three of them if nothing was known."""
        for _ in range(1 if self.moments.any() else 3):
            self.step(rows)

    def step(self, rows: Matrix) -> None:
        samples, width = rows.shape
        rank = len(self.basis)
        eta = min(0.9, 1 - np.exp(-samples / self.history))
        target = eta * rows.T @ rows / samples + (1 - eta) * self.moments
        ahead = self.basis @ target
        # Eigenvectors of a matrix of all directions: the largest are the span of B T.
        squares, vectors = np.linalg.eigh(ahead.T @ ahead)
        values = np.sqrt(np.maximum(squares[::-1][:rank], 0))
        self.basis = vectors.T[::-1][:rank]
        rest = (np.trace(target) - values.sum()) / (width - rank)
        least = FLOOR * values[0]
        spread = np.diag(np.maximum(values - rest, least))
        self.moments = self.basis.T @ spread @ self.basis + max(rest, least) * np.eye(width)

    def precondition(self, rows: Matrix) -> Matrix:
        return precondition(rows, self.moments, self.alpha)
