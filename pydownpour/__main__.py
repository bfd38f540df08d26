"""``python -m pydownpour`` is the command ``pydownpour``."""

from pydownpour.cli import main

if __name__ == "__main__":
    main()
