"""Settings that a person writes: what they must be, and the words when they are something else.

Numbers come as Python's or numpy's, and leave as Python's, so that messages can carry them.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from pydownpour import limits
from pydownpour.errors import ConfigError


def whole(name: str, value: Any, *, least: int, most: int = limits.COUNT_MAX) -> int:
    """A whole number within bounds.

    Raises:
        ConfigError: anything else; True and False are no numbers here.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ConfigError(f"{name}={value!r} must be a whole number")
    number = int(value)
    if number < least:
        raise ConfigError(f"{name}={number} must be at least {least}")
    if number > most:
        bound = "2**53 (COUNT_MAX)" if most == limits.COUNT_MAX else most
        raise ConfigError(f"{name}={number} must be at most {bound}")
    return number


def real(name: str, value: Any, holds: Callable[[float], bool], bound: str) -> float:
    """A finite number.

    Args:
        name: Of the setting.
        value: What was given.
        holds: Whether a finite number is within bounds.
        bound: The bounds in words, for the message.

    Raises:
        ConfigError: anything else; True and False are no numbers here.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{name}={value!r} must be a number, not a {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and holds(number)):
        raise ConfigError(f"{name}={number:g} is out of range; {bound}")
    return number


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        ConfigError: anything else: a text such as "no" would count as true.
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name}={value!r} must be True or False")
    return bool(value)


def positive(value: float) -> bool:
    """Above 0; False for NaN."""
    return value > 0


def not_negative(value: float) -> bool:
    """At least 0; False for NaN."""
    return value >= 0


def fraction(value: float) -> bool:
    """At least 0 and below 1; False for NaN."""
    return 0 <= value < 1
