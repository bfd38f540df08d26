"""Check that a wheel holds what a user needs, and nothing of the workshop."""

from __future__ import annotations

import sys
import zipfile

NEEDED = (
    "pydownpour/__init__.py",
    "pydownpour/py.typed",
    "pydownpour/_core.pyi",
    "pydownpour/_core.abi3.so",
    "LICENSE",
)
"""Ends of names that must occur."""
FOREIGN = ("tests/", "rust/", "examples/", "docs/", ".ci/", "requirements/", "target/")
"""Beginnings of names that must not."""


def main(path: str) -> int:
    """Print what is wrong with the wheel at a path; 0 if nothing is."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    wrong = [f"missing: {want}" for want in NEEDED if not any(n.endswith(want) for n in names)]
    wrong += [f"does not belong: {n}" for n in names if n.startswith(FOREIGN) or "__pycache__" in n]
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(names)} files in the wheel")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
