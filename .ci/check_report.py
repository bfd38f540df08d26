"""Read a run's report from standard input and judge it: accuracy, and counts that must agree."""

from __future__ import annotations

import json
import sys
from typing import Any

SHOWN = ("accuracy", "seconds", "samples", "units", "pushes")


def problems(report: dict[str, Any], accuracy_min: float) -> list[str]:
    """What is wrong with a report of a run in which nothing failed, in words."""
    pushes, work, replicas = report["pushes"], report["work"], report["replicas"]
    equal = {
        "samples of all passes": (report["samples"], work["len"] * work["passes"]),
        "samples of the replicas": (sum(r["samples"] for r in replicas), report["samples"]),
        "units of the replicas": (sum(r["units"] for r in replicas), report["units"]),
        "pushes of the replicas": (sum(r["pushes"]["sent"] for r in replicas), pushes["sent"]),
        "pushes applied": (pushes["applied"] + pushes["refused"], pushes["sent"]),
        "pushes by staleness": (
            sum(report["staleness"]["histogram"].values()),
            pushes["applied"],
        ),
        "state": (report["state"], "done"),
    }
    found = [f"{what}: {a} is not {b}" for what, (a, b) in equal.items() if a != b]
    if report["accuracy"] < accuracy_min:
        found.append(f"accuracy {report['accuracy']} is below {accuracy_min}")
    return found


def main(accuracy_min: float) -> int:
    """Print the report's main figures and its problems; 1 if there are any."""
    report = json.loads(sys.stdin.read())
    print(json.dumps({key: report[key] for key in SHOWN}))
    found = problems(report, accuracy_min)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
