"""Types of the fields of messages: nothing that comes from outside is without a bound.

A message names its fields by these types and the decoder refuses what is outside, before anybody
computes with it. So a field of a new message is one of these, ``bool``, a ``Literal``, another
message, or a list with a ``max_length`` of its own; a test walks all messages and says which field
is none of them. Numbers with a fraction are finite: JSON's ``1e400`` is refused.

Whoever sends words of any length (an error's, a user's) sends them through :func:`clip`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from pydownpour import limits
from pydownpour.errors import RemoteProtocolError

FLOAT_MAX: Final = 1.7976931348623157e308
"""The largest finite double."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)]
"""How many, how many bytes, an LSN, a lease, a place in a pass."""
Word: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
"""What frames carry in 32 bits: a replica's id, an incarnation; also a pid, an index, an epoch."""
Whole: TypeAlias = Annotated[int, Meta(ge=-limits.COUNT_MAX, le=limits.COUNT_MAX)]
"""A whole number of either sign, within COUNT_MAX: exact in JSON's doubles."""
Finite: TypeAlias = Annotated[float, Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
"""A finite number of either sign."""
Norm: TypeAlias = Annotated[float, Meta(gt=0, le=limits.NORM_MAX)]
"""A bound on the L2 norm of a push."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=limits.SECONDS_MAX)]
"""How long something takes or took."""

Label: TypeAlias = Annotated[str, Meta(max_length=limits.LABEL_LEN_MAX)]
"""A name, a host, a version, a digest, a nonce."""
ArrayName: TypeAlias = Annotated[str, Meta(max_length=limits.ARRAY_NAME_LEN_MAX)]
"""A parameter's name."""
Url: TypeAlias = Annotated[str, Meta(max_length=limits.URL_LEN_MAX)]
"""Where somebody listens; also a path of a file."""
Words: TypeAlias = Annotated[str, Meta(max_length=limits.WORDS_LEN_MAX)]
"""A sentence or a few for people."""

Json: TypeAlias = Annotated[str, Meta(max_length=limits.STATE_LEN_MAX)]
"""A small machine's state, for another one of its kind."""

Shape: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=limits.ARRAY_RANK_MAX)]
"""The extents of an array."""
Setting: TypeAlias = bool | Whole | Finite | Label | None
"""The value of a policy's setting."""
Settings: TypeAlias = Annotated[dict[Label, Setting], Meta(max_length=limits.SETTINGS_MAX)]
"""A policy: its settings by name."""
Numbers: TypeAlias = Annotated[dict[Label, Finite], Meta(max_length=limits.SETTINGS_MAX)]
"""One part of an optimizer: its numbers by name."""
CodecEntry: TypeAlias = tuple[Label, Numbers]
"""A codec: its name and its numbers."""
Parts: TypeAlias = Annotated[list[tuple[Label, Numbers]], Meta(max_length=limits.SETTINGS_MAX)]
"""An optimizer: its parts in their order."""


def number(text: str, what: str, greatest: int) -> int:
    """The number that a header or a query names, in plain digits.

    Raises:
        RemoteProtocolError: it is something else, or greater than it can be.
    """
    # int() would take "²", "1_0" and " 7", and refuses more than 4,300 digits in its own words.
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(greatest))):
        raise RemoteProtocolError(f"{what}={text[:40]!r} must be a number from 0 to {greatest}")
    if int(text) > greatest:
        raise RemoteProtocolError(f"{what}={text} must be a number from 0 to {greatest}")
    return int(text)


def clip(words: str, length: int = limits.WORDS_LEN_MAX) -> str:
    """The words, or their beginning where a message has no room for all of them."""
    return words if len(words) <= length else words[: length - 1] + "…"
