"""Job files: find the job in one, and let every process import it by the name it is pickled by.

A job file is run as a module of this package, whose name says where the file is::

    /home/ann/digits.py   ->   pydownpour.jobfiles._2f_home_2f_ann_2f_digits_2e_py

So a function of it reaches the workers of ``multiprocessing`` and ``concurrent.futures`` however
they are started: pickle sends the module's name, and a worker that was spawned imports this
package, which finds the file again. There it runs once more, as any script does in such workers.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

from pydownpour.errors import ConfigError
from pydownpour.job import Job


def module_name(file: Path) -> str:
    """The name under which a job file is imported; it holds the whole path."""
    quoted = re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_", str(file))
    return f"{__name__}.{quoted}"


def _file_of(name: str) -> Path | None:
    """The file that a module's name holds; None if it is no such name."""
    package, _, quoted = name.rpartition(".")
    if package != __name__:
        return None
    try:
        path = re.sub(r"_([0-9a-f]+)_", lambda found: chr(int(found[1], 16)), quoted)
    except (ValueError, OverflowError):
        return None
    return Path(path) if os.path.isabs(path) else None


@final
class _Finder(importlib.abc.MetaPathFinder):
    """Finds job files by the names of their modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of a module of this package whose name holds a path."""
        file = _file_of(fullname)
        if file is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(file), origin=str(file))


@final
class _Loader(importlib.abc.Loader):
    def __init__(self, file: Path) -> None:
        self._file = file

    def exec_module(self, module: ModuleType) -> None:
        """Compile and run it; nothing is cached beside it."""
        module.__file__ = str(self._file)
        _make_importable(str(self._file.parent))
        code = compile(self._file.read_bytes(), str(self._file), "exec", dont_inherit=True)
        exec(code, module.__dict__)


def _make_importable(folder: str) -> None:
    """Put a folder on ``sys.path``: before installed packages, behind the standard library."""
    if folder in sys.path:
        return
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(path, "lib-dynload") for path in library}
    places = [n for n, path in enumerate(sys.path) if os.path.realpath(path) in library]
    sys.path.insert(places[-1] + 1 if places else 0, folder)


if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.append(_Finder())


def load_job(spec: str) -> Job:
    """The job of a file: ``digits.py`` (it has one job) or ``digits.py:job`` (this one).

    The file runs once, not as ``__main__``; it can import files beside it (``sys.path`` has its
    folder, behind the standard library's, so that no ``queue.py`` there gets in anybody's way).

    Raises:
        ConfigError: no such file, no job or several, a syntax error, or an exception while it
            ran; the message keeps the traceback lines that are the file's own.
    """
    path, name = _split(spec)
    module = _run_file(path)
    jobs: dict[int, tuple[str, Job]] = {}
    for key, value in vars(module).items():
        if isinstance(value, Job):
            jobs.setdefault(id(value), (key, value))
    if name:
        job = _named(vars(module), name, path, [key for key, _ in jobs.values()])
    elif len(jobs) == 1:
        ((_, job),) = jobs.values()
    elif not jobs:
        raise ConfigError(
            f"no job in {path}: it must build one at its top level, job = dp.Job(parameters=..., "
            "optimizer=...)"
        )
    else:
        names = [key for key, _ in jobs.values()]
        raise ConfigError(
            f"{path} has {len(jobs)} jobs ({', '.join(names)}); say which: {path}:{names[0]}"
        )
    if not job.named:
        job.name = re.sub(r"[^A-Za-z0-9._-]", "_", path.stem)[:64]
    return job


def _split(spec: str) -> tuple[Path, str]:
    head, colon, tail = spec.rpartition(":")
    # A colon may also belong to the path (C:\jobs\digits.py), so only an identifier is a name.
    path, name = (Path(head), tail) if colon and tail.isidentifier() else (Path(spec), "")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the job file in it")
    if not path.is_file():
        raise ConfigError(f"no job file {str(path)!r} (current folder {Path.cwd()})")
    return path, name


def _named(names: Mapping[str, Any], name: str, path: Path, known: list[str]) -> Job:
    job = names.get(name)
    if isinstance(job, Job):
        return job
    found = f"its jobs are {', '.join(known)}" if known else "it has no job at all"
    if name not in names:
        raise ConfigError(f"no {name!r} in {path}; {found}")
    raise ConfigError(f"{name!r} in {path} is a {type(job).__name__}, not a dp.Job; {found}")


def _run_file(path: Path) -> ModuleType:
    where = path.resolve()
    name = module_name(where)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    # Registered while it runs, because dataclasses and pickle look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
        raise ConfigError(_why(path, where, error)) from error
    return module


def _why(path: Path, where: Path, error: BaseException) -> str:
    """An exception of a job file in words, with the traceback from the file's own line on."""
    if isinstance(error, OSError) and error.__traceback__ and not error.__traceback__.tb_next:
        return f"cannot read {path}: {error.strerror}"
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != str(where):
        frames = frames.tb_next
    lines = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    if isinstance(error, SyntaxError) and frames is None:
        return f"{path} is not valid Python:\n{lines}"
    if isinstance(error, SystemExit):
        return (
            f"{path} called sys.exit({error.code!r}) while it was loaded; keep that under "
            f"if __name__ == '__main__':\n{lines}"
        )
    return f"{path} failed while it was loaded: {type(error).__name__}: {error}\n{lines}"
