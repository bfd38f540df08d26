"""The command ``pydownpour``: click for the words, rich for the terminal.

``app`` is the group, ``roles`` the three processes, ``run`` whole jobs on this machine, ``sim``
the same on virtual time, ``doctor`` what this machine is. ``failures`` turns errors into one line
and an exit code, ``loop`` runs a coroutine under signals, ``display`` watches a run. Nothing here
is imported until it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code (see ``pydownpour.engines``)."""
    from pydownpour.cli.app import app

    app.main(args=None if arguments is None else list(arguments), prog_name="pydownpour")
    raise AssertionError("click exits by itself")
