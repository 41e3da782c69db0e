"""A test that was skipped proved nothing: the run fails, and so does one that ran no test.

Reads the JUnit reports that are named as arguments. An expected failure counts as skipped there, and here.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def main(reports: list[str]) -> int:
    problems = [problem for report in reports for problem in faults(Path(report))]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def faults(report: Path) -> list[str]:
    # Written by pytest a moment ago, on this machine.
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314
    if not cases:
        return [f"{report.name}: no test ran"]
    return [
        f"{report.name}: skipped {case.get('classname')}.{case.get('name')}: {skipped.get('message')}"
        for case in cases
        for skipped in case.iter("skipped")
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
