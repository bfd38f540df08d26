"""``python -m pydownpour`` is the command ``pydownpour``.

Engines start it by its path, ``python -P .../pydownpour/__main__.py``: then it is this very package
that runs, whatever the current folder and ``sys.path`` hold.
"""

from __future__ import annotations

import os
import sys


def _load_own_package() -> None:
    """Import the package that this file is in, wherever it is."""
    from importlib import util

    folder = os.path.dirname(os.path.abspath(__file__))
    spec = util.spec_from_file_location(
        "pydownpour", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["pydownpour"] = util.module_from_spec(spec)
    spec.loader.exec_module(package)
    if os.path.dirname(folder) not in sys.path:
        sys.path.append(os.path.dirname(folder))  # for processes that ours start


if not __package__:
    _load_own_package()
elif __name__ == "__main__" and not sys.flags.safe_path:
    # The current folder, where a queue.py may be: behind everything that has its own place.
    sys.path.append(sys.path.pop(0))

if __name__ == "__main__":
    from pydownpour.cli import main

    main()
