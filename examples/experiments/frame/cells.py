"""Run cells, several at a time, each in a process of its own choice of a few that are kept."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import connection
from typing import NamedTuple

from experiments.frame.experiment import Figures, FormName, Setting, load


class Cell(NamedTuple):
    """One run of one setting of one experiment."""

    experiment: str
    form: FormName
    setting: Setting
    seed: int


def measure(cell: Cell) -> Figures:
    """Its figures."""
    return load(cell.experiment).run(cell.form, cell.setting, cell.seed)


def run_cells(cells: Sequence[Cell], processes: int) -> dict[Cell, Figures]:
    """Every cell, in the order given; real processes one cell after the other, behind the others.

    An interrupt, or a cell that raises, ends everything that was started.
    """
    simulated = [cell for cell in cells if cell.form != "real"]
    done: dict[Cell, Figures] = {}
    if simulated:
        done |= _in_processes(simulated, processes)
    for cell in cells:
        if cell.form == "real":
            done[cell] = measure(cell)
            _say(len(done), len(cells))
    return {cell: done[cell] for cell in cells}


def _in_processes(cells: Sequence[Cell], processes: int) -> Mapping[Cell, Figures]:
    done: dict[Cell, Figures] = {}
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, fresh, _begin)
    try:
        runs = {pool.submit(measure, cell): cell for cell in cells}
        for run in as_completed(runs):
            done[runs[run]] = run.result()
            _say(len(done), len(cells))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown()
    return done


def _begin() -> None:
    """In each process of the pool: it ends with the one that started it, whatever ends that."""
    # A Ctrl-C reaches every process of the terminal; what becomes of these is decided there.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _say(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} runs", end="\n" if done == of else "", file=sys.stderr, flush=True)
