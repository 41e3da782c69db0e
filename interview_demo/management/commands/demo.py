"""`manage.py demo`: an interview on two nodes, one of them killed; exit code 1 if a promise was not kept."""

import json
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from rich.console import Console

from interview_demo.demo.asking import Candidate, RefusedByNode
from interview_demo.demo.dashboard import LookedAt
from interview_demo.demo.migrating import migrate
from interview_demo.demo.operator import Operator, invited_operator
from interview_demo.demo.playing import Interview, InterviewStuck
from interview_demo.demo.processes import ProgramEnded, interruptible
from interview_demo.demo.running import Cluster, running_cluster
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
        parser.add_argument(
            "--stay",
            action=BooleanOptionalAction,
            default=sys.stdin.isatty() and sys.stdout.isatty(),
            help="leave the nodes running at the end, to look at the dashboard (default: on a terminal)",
        )

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        console = Console(file=sys.stderr if options["json"] else sys.stdout, highlight=False, soft_wrap=True)
        terminal = Terminal(console)
        terminal.happened("migrating the database")
        migrate()
        try:
            with interruptible(), _cluster(terminal) as cluster, invited_operator() as operator:
                broken = self._play(terminal, cluster, operator, is_json=options["json"])
                if options["stay"]:
                    terminal.stays(operator.invitation(cluster.first.url))
                    _stay(cluster)
                else:
                    terminal.ends()
        except KeyboardInterrupt:
            terminal.happened("stopped")
            sys.exit(_INTERRUPTED)
        except (ProgramEnded, NeverCame) as exc:
            raise CommandError(str(exc)) from exc
        if broken:
            sys.exit(1)

    def _play(self, terminal: Terminal, cluster: Cluster, operator: Operator, *, is_json: bool) -> list[str]:
        """Play the interview, print its numbers, and return what was not kept."""
        with Candidate(terminal.asked) as candidate, LookedAt(cluster.second.url, operator) as dashboard:
            try:
                tally = Interview(cluster, candidate, dashboard, terminal).play()
            except (NeverCame, RefusedByNode, InterviewStuck) as exc:
                raise CommandError(f"{exc}\n{cluster.last_words()}") from exc
        broken = broken_promises(tally, lease_timeout=_lease_timeout())
        terminal.table(tally)
        terminal.verdict(tally, broken, simulated=cluster.model.is_simulated)
        if is_json:
            self.stdout.write(json.dumps(tally.as_dict()))
            self.stdout.flush()
        return broken


@contextmanager
def _cluster(terminal: Terminal) -> Iterator[Cluster]:
    terminal.happened("starting the model server and two nodes")
    connections.close_all()
    with running_cluster() as cluster:
        terminal.happened(f"node A answers at {cluster.first.url}, node B at {cluster.second.url}")
        yield cluster


def _stay(cluster: Cluster) -> None:
    """Leave the nodes running; Ctrl-C is the good end of it."""
    with suppress(KeyboardInterrupt):
        cluster.watch()


def _lease_timeout() -> float:
    stages: dict[str, dict[str, float]] = getattr(settings, "SINGLEFLIGHT", {}).get("STAGES", {})
    return float(stages.get(SCORE_STAGE, {}).get("lease_timeout", 30.0))
