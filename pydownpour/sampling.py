"""Which samples a work unit holds: a pure function of the job's seed, so nobody sends index lists.

The order of a pass is a *keyed bijection* of [0, len): place p holds sample f(p), and f is computed
for the places that are wanted, so an order costs a few integers whatever its length is, and any
machine can audit any unit.

f is the generalised Feistel network of Black and Rogaway (Ciphers with Arbitrary Finite Domains,
CT-RSA 2002, section 5), walked until it ends inside [0, len) (their section 4). With a * b >= len,
a and b near the square root, x is written as two digits, left + a * right, and each round does

    left, right <- right, (left + F(key of the round, right)) mod (a or b, in turn)

which is undone by a subtraction: so a round is a bijection of [0, a * b) whatever F is. A result
beyond len is put in again; the walk comes back inside before it comes back to its start, so f is a
bijection of [0, len), and since a * b - len < a hardly anything walks.

Deviation: the source asks for a pseudorandom F and proves f to be as good as F. Here F is the
finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), which mixes well and is no cipher: an
order is shuffled, not secret. Not every permutation of a handful of samples is equally likely.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 8
"""Even, so that the digits end where they began. The source proves most about three; more cost
little and make short orders more even."""
CHUNK_LEN: Final = 1 << 16
"""Places computed at once: what is in between stays in the cache."""

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_FACTOR_1, _FACTOR_2 = map(np.uint64, _FACTORS)
_SHIFT_27, _SHIFT_30, _SHIFT_31 = map(np.uint64, (27, 30, 31))

Words = NDArray[np.uint64]


def samples_at(
    length: int, shuffle: bool, seed: int, pass_index: int, start: int, stop: int
) -> NDArray[np.int64]:
    """The samples that pass ``pass_index`` visits at places [start, stop) of its order.

    Args:
        length: Samples in a pass, 1 to ``limits.COUNT_MAX``.
        shuffle: False gives 0, 1, 2, ...
        seed: The job's seed.
        pass_index: The pass, from 0; each has its own order.
        start: The first place, >= 0.
        stop: One after the last place, start <= stop <= length.

    Shapes:
        returns: (stop - start,) int64, read-only; over all places each sample once.
    """
    places = np.arange(start, stop, dtype=np.int64)
    if shuffle:
        low, high = _digits(length)
        keys = _round_keys(seed, pass_index)
        for at in range(0, len(places), CHUNK_LEN):
            chunk = places[at : at + CHUNK_LEN]
            chunk[...] = _walked(chunk.view(np.uint64), length, low, high, keys)
    places.flags.writeable = False
    return places


def units_in_pass(length: int, unit: int) -> int:
    """Work units a pass of ``length`` samples is cut into."""
    return -(-length // unit)


def _walked(
    x: Words, length: int, low: np.uint64, high: np.uint64, keys: tuple[np.uint64, ...]
) -> Words:
    found = _network(x, low, high, keys)
    outside = np.flatnonzero(found >= length)
    while outside.size:
        again = _network(found[outside], low, high, keys)
        found[outside] = again
        outside = outside[again >= length]
    return found


def _network(x: Words, low: np.uint64, high: np.uint64, keys: tuple[np.uint64, ...]) -> Words:
    """The bijection of [0, low * high)."""
    left, right = x % low, x // low
    for index, key in enumerate(keys):
        digits = high if index % 2 else low
        mixed = right + key  # like all of F modulo 2**64
        mixed ^= mixed >> _SHIFT_30
        mixed *= _FACTOR_1
        mixed ^= mixed >> _SHIFT_27
        mixed *= _FACTOR_2
        mixed ^= mixed >> _SHIFT_31
        mixed %= digits
        mixed += left
        mixed %= digits
        left, right = right, mixed
    return left + right * low


def _digits(length: int) -> tuple[np.uint64, np.uint64]:
    """(a, b): how many values the two digits have; a * b >= length > a * b - a."""
    low = math.isqrt(length - 1) + 1
    return np.uint64(low), np.uint64(-(-length // low))


@functools.lru_cache(maxsize=4)  # the pass that runs and the ones whose stragglers still do
def _round_keys(seed: int, pass_index: int) -> tuple[np.uint64, ...]:
    state = _mixed(_mixed(seed + _GOLDEN) + pass_index + _GOLDEN)
    return tuple(np.uint64(_mixed(state + (i + 1) * _GOLDEN)) for i in range(ROUNDS))


def _mixed(word: int) -> int:
    """SplitMix64's finaliser of one word."""
    word &= _WORD
    word = (word ^ word >> 30) * _FACTORS[0] & _WORD
    word = (word ^ word >> 27) * _FACTORS[1] & _WORD
    return word ^ word >> 31
