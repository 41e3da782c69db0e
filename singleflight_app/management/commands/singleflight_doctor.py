"""`manage.py singleflight_doctor`: what is well and what is not, each with its repair; an exit code for CI."""

import json
from argparse import ArgumentParser
from itertools import groupby
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from singleflight_app import health
from singleflight_app.health import Finding, Level
from singleflight_app.management.tables import printable

UNABLE = 2  #: exit code: it could not look at all
_WIDTH = 1000


class Command(BaseCommand):
    help = (
        "Looks at the settings, PostgreSQL, Redis, Celery and the flights, and says what to do about what is wrong. "
        "Exit code 0: nothing as bad as --fail-on; 1: something; 2: it could not look."
    )
    # Those of singleflight are among the findings; a wrong setting must not keep the doctor from saying so.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--json", action="store_true", help="print one JSON object")
        levels = [Level.WARNING.value, Level.ERROR.value]
        add("--fail-on", choices=levels, default=Level.ERROR.value, help="exit with 1 from here on (default: error)")
        add("--database", help="alias (default: the DATABASE of SINGLEFLIGHT)")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  (Django's signature)
        """Print all findings, and exit with 1 if one of them is bad enough."""
        alias = options["database"]
        if alias is not None and alias not in connections.settings:
            known = ", ".join(sorted(connections.settings))
            message = f"--database {alias!r} is no alias of DATABASES; use one of: {known}"
            raise CommandError(message, returncode=UNABLE)
        found = health.findings(alias=alias)
        self.stdout.write(_json(found) if options["json"] else _text(found))
        worst = max(finding.level.rank for finding in found)
        if worst >= Level(options["fail_on"]).rank:
            raise SystemExit(1)


def _text(found: list[Finding]) -> str:
    lines = []
    for subject, group in groupby(found, key=lambda finding: finding.subject):
        lines.append(subject)
        for finding in group:
            lines.append(f"  {finding.level.value:8} {printable(finding.text, _WIDTH)}  [{finding.id}]")
            if finding.repair:
                lines.append(f"  {'':8} -> {printable(finding.repair, _WIDTH)}")
    counts = [f"{_count(found, level)} {level.value}" for level in reversed(Level)]
    return "\n".join([*lines, "", ", ".join(counts)])


def _count(found: list[Finding], level: Level) -> int:
    return sum(1 for finding in found if finding.level is level)


def _json(found: list[Finding]) -> str:
    listed = [
        {
            "id": finding.id,
            "level": finding.level.value,
            "text": finding.text,
            "repair": finding.repair,
            "facts": dict(finding.facts),
        }
        for finding in found
    ]
    return json.dumps({"findings": listed, **{level.value: _count(found, level) for level in Level}}, default=str)
