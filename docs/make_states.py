"""Write states.md from the tables of the code.

    python docs/make_states.py

``tests/unit/test_states.py`` fails while the page says something else than the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydownpour.coordinator.job_state import JOB
from pydownpour.coordinator.membership import MEMBER
from pydownpour.coordinator.places import PLACE
from pydownpour.coordinator.units import UNIT
from pydownpour.shard.state import SHARD
from pydownpour.states import Table, diagram

PAGE: Final = Path(__file__).with_name("states.md")
TABLES: Final[dict[str, tuple[Table[Any], str]]] = {
    "A job": (JOB, "pydownpour/coordinator/job_state.py"),
    "A shard's place": (PLACE, "pydownpour/coordinator/places.py"),
    "A shard's process": (SHARD, "pydownpour/shard/state.py"),
    "A member": (MEMBER, "pydownpour/coordinator/membership.py"),
    "A unit of a pass": (UNIT, "pydownpour/coordinator/units.py"),
}
"""By heading: the table, and the file where it stands beside the code that obeys it."""
HEAD: Final = """# What becomes what, and when

Made from the tables in the code by `python docs/make_states.py`; a test compares the two. A state
changes by one method, which looks its table up: what is not listed here raises, and says so.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for heading, (table, file) in TABLES.items():
        parts.append(f"## {heading}\n\n`{file}`\n\n{diagram(table)}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
