"""A cell in real processes: ``pydownpour run`` with a job file that asks the script for its job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from experiments.frame.experiment import Setting, write_setting

EXAMPLES: Final = Path(__file__).resolve().parents[2]
JOB_FILE: Final = """\
import sys

sys.path.insert(0, {examples!r})

from experiments import {name}

job = {name}.make_job({name}.EXPERIMENT.read_setting({setting!r}), {seed})
"""


def run(name: str, setting: Setting, seed: int, *, replicas: int, shards: int) -> dict[str, Any]:
    """The report of a run of ``make_job(setting, seed)`` of the script of that name.

    An interrupt ends all of its processes.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.py"
        text = JOB_FILE.format(
            examples=str(EXAMPLES), name=name, setting=write_setting(setting), seed=seed
        )
        file.write_text(text)
        command = [sys.executable, "-m", "pydownpour", "run", str(file), "--json"]
        command += ["--shards", str(shards), "--replicas", str(replicas)]
        command += ["--run-folder", str(Path(folder) / "run")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            try:
                said, errors = running.communicate()
            except BaseException:
                running.send_signal(signal.SIGINT)  # the terminal's, if any, is its second: at once
                running.communicate()
                raise
    if running.returncode:
        raise RuntimeError(f"{name}: {write_setting(setting)}:\n{errors.decode()}")
    return {"failure": "", **json.loads(said.splitlines()[-1])}
