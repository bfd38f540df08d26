"""The user's code raised: whose line it was, and at which unit of work."""

from __future__ import annotations

import os
import sysconfig
import traceback
from types import TracebackType
from typing import Final

from pydownpour import limits
from pydownpour.errors import DownpourError, InternalError, MisuseError, ParameterError
from pydownpour.fields import clip
from pydownpour.replica.work import Unit
from pydownpour.wire.messages import UnitFailure

OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Where the files of this package are."""
_LIBRARIES: Final = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


_NOTE: Final = "at unit "


class EndedItself(RuntimeError):
    """The replica function ended in a way that is neither a return nor an exception of its own."""


def is_users(error: BaseException) -> bool:
    """Whether the user's code is to blame: not the network, not the settings, and not us."""
    ours = isinstance(error, (DownpourError, InternalError)) or not isinstance(error, Exception)
    return isinstance(error, (ParameterError, MisuseError)) or not ours


def user_traceback(error: BaseException) -> list[str]:
    """The traceback of a user's exception, without the frames of this package above theirs."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OURS):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    return text.rstrip().splitlines()


def user_line(error: BaseException) -> str:
    """``digits.py:27 in train``: the deepest line that is the user's own; "" if there is none."""
    found: TracebackType | None = None
    frames = error.__traceback__
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if not file.startswith((OURS, *_LIBRARIES)) and os.path.isabs(file):
            found = frames
        frames = frames.tb_next
    if found is None:
        return ""
    code = found.tb_frame.f_code
    return f"{os.path.basename(code.co_filename)}:{found.tb_lineno} in {code.co_name}"


def in_words(error: BaseException) -> str:
    """``ZeroDivisionError: division by zero (digits.py:27 in train)``."""
    text = str(error)
    name = "" if isinstance(error, (DownpourError, EndedItself)) else type(error).__name__
    words = ": ".join(filter(None, (name, text))) or type(error).__name__
    line = user_line(error)
    return f"{words} ({line})" if line else words


def note_unit(error: BaseException, unit: Unit | None) -> None:
    """Let a user's exception say in its traceback at which unit it was raised."""
    if unit is not None and is_users(error) and not noted_unit(error):
        error.add_note(
            f"{_NOTE}{unit.unit} of pass {unit.pass_index + 1}: places {unit.start} to "
            f"{unit.stop - 1} of the pass's order, "
            f"job.data.indices({unit.pass_index}, {unit.start}, {unit.stop})"
        )


def noted_unit(error: BaseException) -> str:
    """What :func:`note_unit` noted, "" if nothing."""
    notes: list[str] = getattr(error, "__notes__", [])
    return next((note for note in notes if note.startswith(_NOTE)), "")


def unit_failure(error: BaseException, unit: Unit | None) -> UnitFailure | None:
    """What the coordinator is told, if the user's code raised while it had a unit."""
    if unit is None or not is_users(error):
        return None
    return UnitFailure(
        pass_index=unit.pass_index,
        unit=unit.unit,
        lease=unit.lease,
        words=clip(in_words(error)),
        traceback=_end_of("\n".join(user_traceback(error))),
    )


def _end_of(text: str) -> str:
    """A traceback's last lines say more than its first."""
    return text[-limits.WORDS_LEN_MAX :]
