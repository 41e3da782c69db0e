"""`manage.py demo`: an interview on two nodes, one of them killed; exit code 1 if a promise was not kept."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from rich.console import Console

from interview_demo.demo.asking import Candidate, RefusedByNode
from interview_demo.demo.migrating import migrate
from interview_demo.demo.playing import Interview, InterviewStuck
from interview_demo.demo.processes import ProgramEnded, interruptible
from interview_demo.demo.running import running_cluster
from interview_demo.demo.tally import Tally
from interview_demo.demo.telling import Terminal
from interview_demo.demo.verdict import broken_promises
from interview_demo.demo.waiting import NeverCame
from interview_demo.flights import SCORE_STAGE

_INTERRUPTED = 130  #: the code of a program that Ctrl-C ended


class Command(BaseCommand):
    """Plays the interview and judges its numbers."""

    help = "Play a mock interview on two nodes with the duplicates that users make, and count the model calls."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, the story on stderr")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        console = Console(file=sys.stderr if options["json"] else sys.stdout, highlight=False, soft_wrap=True)
        terminal = Terminal(console)
        try:
            with interruptible():
                tally, simulated = _play(terminal)
        except KeyboardInterrupt:
            terminal.happened("stopped")
            sys.exit(_INTERRUPTED)
        except (ProgramEnded, NeverCame) as exc:
            raise CommandError(str(exc)) from exc
        broken = broken_promises(tally, lease_timeout=_lease_timeout())
        terminal.table(tally)
        terminal.verdict(tally, broken, simulated=simulated)
        if options["json"]:
            self.stdout.write(json.dumps(tally.as_dict()))
        if broken:
            sys.exit(1)


def _play(terminal: Terminal) -> tuple[Tally, bool]:
    terminal.happened("migrating the database")
    migrate()
    connections.close_all()
    terminal.happened("starting the model server and two nodes")
    with running_cluster() as cluster, Candidate(terminal.asked) as candidate:
        terminal.happened(f"node A answers at {cluster.first.url}, node B at {cluster.second.url}")
        try:
            return Interview(cluster, candidate, terminal).play(), cluster.model.is_simulated
        except (NeverCame, RefusedByNode, InterviewStuck) as exc:
            raise CommandError(f"{exc}\n{cluster.last_words()}") from exc


def _lease_timeout() -> float:
    stages: dict[str, dict[str, float]] = getattr(settings, "SINGLEFLIGHT", {}).get("STAGES", {})
    return float(stages.get(SCORE_STAGE, {}).get("lease_timeout", 30.0))
