"""Read a run's report from standard input; fail unless it reached the accuracy given."""

from __future__ import annotations

import json
import sys

SHOWN = ("accuracy", "seconds", "samples", "pushes", "staleness")


def main(accuracy_min: float) -> int:
    """Print the report's main figures; 1 if the accuracy is too low."""
    report = json.loads(sys.stdin.read())
    print(json.dumps({key: report[key] for key in SHOWN}))
    if report["accuracy"] < accuracy_min:
        print(f"accuracy {report['accuracy']} is below {accuracy_min}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
