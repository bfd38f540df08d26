"""Renew requirements/lock.txt: exact versions of everything a developer's venv holds.

Reads the dependencies and dependency groups of pyproject.toml, installs their newest allowed
versions into a fresh throw-away venv and writes down what that gave. Run it by ``make lock``, then
``make test``, and commit the new lock if both agree.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "lock.txt"
HEADER = """\
# Exact versions for developers and CI, written by `make lock` from pyproject.toml: edit that.
# Users of the package are not bound by them.
"""
MARKERS = {"uvloop": "sys_platform != 'win32'"}
"""Packages that do not exist everywhere."""


def wanted(project: dict[str, Any], group: str = "everything") -> list[str]:
    """The requirements of the project itself and of one dependency group, groups unfolded."""
    groups = project["dependency-groups"]

    def unfold(name: str) -> list[str]:
        found: list[str] = []
        for entry in groups[name]:
            found += unfold(entry["include-group"]) if isinstance(entry, dict) else [entry]
        return found

    return [*project["project"]["dependencies"], *unfold(group)]


def resolve(requirements: list[str]) -> list[str]:
    """Lines ``name==version`` of a fresh venv with the newest allowed versions."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder, "bin", "python")), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", *requirements], check=True)
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True)
    return sorted(frozen.stdout.split("\n"), key=str.lower)


def main() -> None:
    """Write the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = []
    for line in filter(None, resolve(wanted(project))):
        marker = MARKERS.get(line.partition("==")[0])
        lines.append(f"{line} ; {marker}" if marker else line)
    LOCK.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{len(lines)} packages pinned in {LOCK.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
