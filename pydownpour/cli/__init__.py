"""The command ``pydownpour``: click for the words, rich for the terminal.

Each of these is imported when it is used.

    app.py          the group of commands, and its help
    roles.py        coordinator, shard, replica: each one process
    run.py          whole jobs on this machine: run and demo
    sim.py          the same on virtual time
    policy.py       which policy a running job obeys, and another one
    doctor.py       what this machine and this build are
    options.py      options that several commands share
    loop.py         one coroutine on the best event loop there is, under signals
    interrupts.py   what those mean: the first ends the command, a third kills
    failures.py     from an error to one line and an exit code
    display.py      a run as it goes: a live table, or plain lines
    progress.py     from statuses to what a person wants to read; pure
    summary.py      a finished run's report as one short table
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended before it knew more (``engines.EXIT_INTERRUPTED``)."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code (see ``pydownpour.engines``)."""
    _own_signals()
    from pydownpour.engines import streams

    streams.reopen_closed()
    streams.use_plain_letters()

    from pydownpour.cli.app import app

    app.main(args=None if arguments is None else list(arguments), prog_name="pydownpour")
    raise AssertionError("click exits by itself")


def _own_signals() -> None:
    """Undo what a parent may have left us, and let Ctrl-C end even the imports in one line."""
    if hasattr(signal, "pthread_sigmask"):
        # A blocked SIGCHLD hides the ends of children; the others could not stop or continue us.
        needed = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, needed)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the kernel eats exit codes
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, _: object) -> None:
    """Nothing runs yet, or nothing any more: there is nothing to put in order."""
    with contextlib.suppress(OSError):
        os.write(2, f"pydownpour: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(INTERRUPTED)
