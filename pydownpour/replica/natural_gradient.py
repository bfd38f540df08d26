"""Natural-gradient SGD: a layer's gradient from the rows of its minibatch, preconditioned online.

Pure numpy, of the user's thread: the training loop calls it before ``replica.step``. An averaged
gradient is not enough to know a Fisher matrix by; the rows that it is the sum of are, and only the
loop has those.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import config
from pydownpour.config import not_negative, positive
from pydownpour.errors import ConfigError, GradientMismatch, UnsupportedArray
from pydownpour.layout import as_array

Rows: TypeAlias = NDArray[np.float64]
"""(samples, width), a sample in each row."""

SIDES: Final = {"inputs": 20, "derivatives": 80}
"""The two sides of a layer, and the rank of each in Kaldi's recipes."""
FIRST_LEARNT: Final = 10
"""Minibatches that a factor learns from one by one before it skips any."""
FIRST_STEPS: Final = 3
"""Power steps on the first of them: it starts from directions that know nothing of the data."""
ETA_MAX: Final = 0.9
"""The most that one minibatch weighs, however large it is."""
FLOOR: Final = 5e-4
"""The least spread in any direction, as a share of the largest."""
SQUARES: Final = (1e-200, 1e200)
"""Rows whose sum of squares is outside are passed on as they are: 0, NaN, or no numbers to square
once more."""


@final
class Factor:
    """One side of a layer: its rows' second moments F, low in rank, and rows times F's inverse.

    F = B^T diag(d) B + rho I, with orthonormal rows B (rank, width).

    Args:
        width: Elements of a row.
        rank: Directions that are told apart, 0 to width - 1. With 0, all rows stay as they are.
        alpha: How much of the mean of all directions is added to each.
        history: Samples that the estimate remembers.
    """

    def __init__(self, width: int, rank: int, alpha: float, history: float) -> None:
        self._alpha, self._history = alpha, history
        # The same in every replica, and related to no data: no direction of it can be missed.
        chance = np.random.default_rng(0).standard_normal((width, rank))
        self._basis: Rows = np.ascontiguousarray(np.linalg.qr(chance)[0].T)
        self._spread = np.zeros(rank)
        self._rest = 0.0
        self._is_new = True

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._basis.nbytes + self._spread.nbytes

    def learn(self, rows: Rows) -> None:
        """Let F move towards these rows' second moments: one step of the power method.

        T = eta X^T X / N + (1 - eta) F; the new B and d + rho are the right singular vectors and
        the singular values of B T; rho is such that the traces of the new F and of T are equal.
        """
        if self._spread.size:
            for _ in range(FIRST_STEPS if self._is_new else 1):
                self._learn(rows)
            self._is_new = False

    def _learn(self, rows: Rows) -> None:
        samples, width = rows.shape
        eta = min(ETA_MAX, -math.expm1(-samples / self._history))
        known = self._spread + self._rest
        ahead = (eta / samples) * ((rows @ self._basis.T).T @ rows)
        ahead += ((1 - eta) * known)[:, None] * self._basis
        trace = (eta / samples) * np.vdot(rows, rows)
        trace += (1 - eta) * (self._spread.sum() + width * self._rest)
        _, values, self._basis = np.linalg.svd(ahead, full_matrices=False)
        rest = (trace - values.sum()) / (width - len(values))
        least = FLOOR * values[0]
        self._rest = float(max(rest, least))
        self._spread = np.maximum(values - rest, least)

    def precondition(self, rows: Rows) -> Rows:
        """Rows times the inverse of F + alpha tr(F) / width I, as large together as they were."""
        spread, width = self._spread, rows.shape[1]
        smooth = self._rest * (1 + self._alpha) + self._alpha * spread.sum() / width
        if not smooth:
            return rows
        kept = (rows @ self._basis.T) * (spread / (spread + smooth))
        bent: Rows = rows - kept @ self._basis
        bent *= math.sqrt(np.vdot(rows, rows) / np.vdot(bent, bent))
        return bent


@final
class NaturalGradient:
    """The gradient of one weight matrix by natural-gradient SGD: not ``inputs.T @ derivatives``.

    Make one for each weight matrix, inside the replica's function, and call :meth:`gradient` with
    each minibatch's rows::

        natural = dp.NaturalGradient()
        ...
        await replica.step({"w": natural.gradient(x[batch], wrong), ...})

    Both sides of the layer are treated alike. Of their rows X (samples N, width D) it keeps the
    second moments F, by ``rank`` directions and one number for all others, and moves them with
    minibatches by one step of the power method; with G = F + alpha tr(F) / D I the rows become
    X G^-1, scaled so that their norm (Frobenius) stays, and the gradient is the product of both.
    Scaling all of a side's rows changes nothing but the gradient's scale; a bias is a column of
    ones of the inputs. Other arrays' gradients are handed to ``replica.step`` as they are.

    Args:
        rank_inputs: Directions told apart among inputs: at least 1, below their width. None: 20, or
            the width - 1 if that is less.
        rank_derivatives: The same among derivatives. None: 80, or their width - 1.
        alpha: How much G is smoothed, 0 or more: 0 is F itself, a large one plain SGD.
        history: How many samples F remembers, above 0: a minibatch of N that it learns from weighs
            1 - exp(-N / history), at most 0.9.
        update_every: F learns from each of the first 10 minibatches, and from every so manieth
            then, at least 1.

    State: 8 bytes for each direction and element of a row, on both sides (``state_size``), from the
    first minibatch on. It is the replica's own, travels nowhere, and begins anew where the function
    does: in a process that was restarted. Sharing one among replicas or matrices mixes their rows.

    Rows with NaN or infinite values teach nothing, and give the plain gradient, which is neither:
    ``replica.step`` drops it, counts it and names the array.

    Raises:
        ConfigError: a setting out of its bounds.

    Su and Chen 2015 use it with model averaging; equations and numbers are those of Kaldi's online
    natural gradient (Povey, Zhang and Khudanpur 2014). Deviations: singular vectors are computed of
    B T itself, not of its square, so nothing has to be made orthogonal again; F begins at 0 and its
    floors are shares of its largest value, so the scale of rows does not matter; how far parameters
    move is not limited here (``dp.Clip`` and the job's ``max_norm`` limit gradients).
    """

    def __init__(
        self,
        *,
        rank_inputs: int | None = None,
        rank_derivatives: int | None = None,
        alpha: float = 4.0,
        history: float = 2000.0,
        update_every: int = 4,
    ) -> None:
        name = "natural gradient"
        self._ranks = {
            side: None if rank is None else config.whole(f"{name}: rank_{side}", rank, least=1)
            for side, rank in zip(SIDES, (rank_inputs, rank_derivatives), strict=True)
        }
        self._alpha = config.real(f"{name}: alpha", alpha, not_negative, "alpha is 0 or more")
        self._history = config.real(f"{name}: history", history, positive, "history is above 0")
        self._update_every = config.whole(f"{name}: update_every", update_every, least=1)
        self._widths: tuple[int, ...] = ()
        self._factors: list[Factor] = []
        self._seen = 0

    @property
    def state_size(self) -> int:
        """Bytes that are kept between minibatches; 0 before the first."""
        return sum(factor.size for factor in self._factors)

    def gradient(self, inputs: Any, derivatives: Any) -> NDArray[Any]:
        """What takes the place of ``inputs.T @ derivatives``; it also learns from this minibatch.

        Args:
            inputs: (samples, width in): what the layer multiplies by its weights.
            derivatives: (samples, width out): of the loss, by what that product gives. Sums over
                samples and means alike, as long as it is always the same.

        Returns:
            (width in, width out); float64 if one of both is, else float32.

        Raises:
            GradientMismatch: not two such arrays, or other widths than before.
            ConfigError: a rank is not below its width.
            UnsupportedArray: what is no array of numbers.
        """
        arrays = [_numbers(*side) for side in zip(SIDES, (inputs, derivatives), strict=True)]
        self._check(arrays)
        rows: list[Rows] = [np.asarray(array, np.float64) for array in arrays]
        is_wide = any(array.dtype == np.float64 for array in arrays)
        with np.errstate(all="ignore"):
            if all(SQUARES[0] < np.vdot(one, one) < SQUARES[1] for one in rows):
                rows = self._preconditioned(rows)
            x, d = (one if is_wide else one.astype(np.float32) for one in rows)
            product: NDArray[Any] = x.T @ d
            return product

    def _preconditioned(self, rows: list[Rows]) -> list[Rows]:
        """By what was known before; the first minibatch, of which nothing was, by its own rows."""
        if not self._seen:
            self._learn(rows)
        bent = [factor.precondition(one) for factor, one in zip(self._factors, rows, strict=True)]
        if self._seen < FIRST_LEARNT or self._seen % self._update_every == 0:
            self._learn(rows)
        self._seen += 1
        return bent

    def _learn(self, rows: list[Rows]) -> None:
        for factor, one in zip(self._factors, rows, strict=True):
            factor.learn(one)

    def _check(self, arrays: list[NDArray[Any]]) -> None:
        """Shapes, and with the first of them the factors."""
        shapes = [array.shape for array in arrays]
        words = " and ".join(f"{side} {shape}" for side, shape in zip(SIDES, shapes, strict=True))
        if any(len(shape) != 2 or not all(shape) for shape in shapes):
            raise GradientMismatch(
                f"natural gradient: {words}: each must be (samples, width) with at least one of "
                "both; more dimensions of samples become one: .reshape(-1, width)"
            )
        if shapes[0][0] != shapes[1][0]:
            raise GradientMismatch(f"natural gradient: {words}: not the same number of samples")
        widths = tuple(shape[1] for shape in shapes)
        if self._widths and widths != self._widths:
            raise GradientMismatch(
                f"natural gradient: {words}, and widths were {self._widths} before: each weight "
                "matrix needs a NaturalGradient of its own"
            )
        if not self._widths:
            self._factors = [
                Factor(width, self._rank(side, width), self._alpha, self._history)
                for side, width in zip(SIDES, widths, strict=True)
            ]
            self._widths = widths

    def _rank(self, side: str, width: int) -> int:
        rank = self._ranks[side]
        if rank is None:
            return min(SIDES[side], width - 1)
        if rank >= width:
            raise ConfigError(
                f"natural gradient: rank_{side}={rank} must be below the width of {side}, {width}; "
                f"without it, it is {min(SIDES[side], width - 1)}"
            )
        return rank


def _numbers(side: str, value: Any) -> NDArray[Any]:
    array = as_array(side, value, "rows")
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise UnsupportedArray(f"rows {side!r} have dtype {array.dtype}: they must be real numbers")
    return array
