"""Loops in C that ours are compared with, compiled here for this processor."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")


def library(source: str) -> ctypes.CDLL | None:
    """The functions of some C; None where there is no compiler that takes it."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        return None
    with tempfile.TemporaryDirectory() as folder:
        text, compiled = Path(folder, "loops.c"), Path(folder, "loops.so")
        text.write_text(source)
        command = [compiler, *FLAGS, str(text), "-o", str(compiled)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        return ctypes.CDLL(str(compiled))
