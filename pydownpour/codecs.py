"""Codecs: frozen descriptions of how gradients travel in fewer bytes.

Nothing here computes. Replicas and shards compile a description once (``pydownpour._core.Codec``);
the numpy twins that say slowly what each does are in ``tests/reference``. What travels, and what
becomes of what a codec leaves out: docs/codecs.md.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, TypeAlias, final

from pydownpour import _core, config

Entry: TypeAlias = tuple[str, dict[str, float]]
"""The wire form: a name and its numbers."""


class Codec:
    """Base of the codecs. Subclasses are frozen dataclasses of numbers."""

    name: ClassVar[str]

    def entry(self) -> Entry:
        """This codec in wire form."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return self.name, {f.name: float(getattr(self, f.name)) for f in fields}

    def describe(self) -> str:
        """One line for people, e.g. ``int8(block=256)``."""
        return described(self.entry())


@final
@dataclasses.dataclass(frozen=True)
class Int8(Codec):
    """One byte an element and a float32 scale for each block of them: a quarter of the bytes.

    An element of x, the gradient and what earlier pushes left of theirs, becomes the nearest
    multiple of its block's max|x| / 127; what that leaves is kept and goes with the next push
    (error feedback: Seide et al. 2014, section 2). So it needs no tuning and loses nothing over
    several pushes; each replica keeps one more float32 an element.

    Args:
        block: Elements that share a scale: a multiple of 16, from 16 to 65,536. Shorter blocks
            are finer where gradients differ much in size, and cost 4 bytes each.

    Deviations: the paper's is one bit; rounding here is to nearest, not at random as QSGD's
    (Alistarh et al. 2017), so that a push is a function of its gradient.
    """

    block: int = 256
    name: ClassVar[str] = "int8"

    def __post_init__(self) -> None:
        block = config.whole("int8: block", self.block, least=1)
        object.__setattr__(self, "block", block)
        compiled(self.entry())


@final
@dataclasses.dataclass(frozen=True)
class Threshold(Codec):
    """Only what has grown larger than a threshold travels, as one quantum and its sign.

    Strom 2015, on each element of x, the gradient and what earlier pushes left of theirs::

        x > tau:   send  tau, keep x - tau
        x < -tau:  send -tau, keep x + tau
        else       send nothing, keep x

    An element that is sent costs 4 bytes (its index, 31 bits, and its sign), and when that would be
    more, all of them cost 2 bits each: never more than a sixteenth of float32. A fragment of which
    nothing is sent is left out of its push: for the shard's optimizer that is no update at all.
    Nothing is lost, only delayed: what was sent and what is kept are the sum of all gradients.

    Args:
        tau: The quantum, from 2^-122 to 2^122, rounded to 8 significant bits (then what is kept is
            exact). It is a part of the gradient as ``step`` is given it. The paper's is one of
            the update, which is multiplied by the learning rate already: with ``dp.SGD(lr)`` its
            tau is ours times lr, so choose ``Threshold(theirs / lr)``.

    Deviations: the unit of tau; messages go to shards, which apply them, and not to every node. One
    quantum an element and push, as published: what is far larger than tau takes many pushes, and an
    element beyond 65,536 times tau is refused as too large.
    """

    tau: float = 0.1
    name: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        words = "it must be above 0"
        tau = config.real("threshold: tau", self.tau, lambda x: x > 0, words)
        object.__setattr__(self, "tau", tau)
        compiled(self.entry())


CODECS: tuple[type[Codec], ...] = (Int8, Threshold)
"""Every codec, for tables and for the shared contract tests."""


def compiled(entry: Entry | None) -> _core.Codec | None:
    """What a wire form describes, ready to run; None is no codec.

    Raises:
        ConfigError: this build has no such codec, or a number is out of its bounds.
    """
    return None if entry is None else _core.Codec(*entry)


def described(entry: Entry) -> str:
    """A wire form for people, e.g. ``int8(block=256)``."""
    name, numbers = entry
    return f"{name}({', '.join(f'{key}={value:g}' for key, value in numbers.items())})"
