"""`manage.py serve`: the model server and two nodes with a page to click, until Ctrl-C."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from interview_demo.demo.migrating import migrate
from interview_demo.demo.processes import ProgramEnded, interruptible
from interview_demo.demo.running import Cluster, running_cluster
from interview_demo.demo.waiting import NeverCame, wait_until


class Command(BaseCommand):
    """Leaves two nodes running."""

    help = "Run two nodes and the model they ask, and print the page's addresses."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="of node A; node B takes the next; 0: free ones")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        port: int = options["port"]
        migrate()
        connections.close_all()
        try:
            with (
                interruptible(),
                running_cluster(first_port=port, second_port=port and port + 1) as cluster,
            ):
                self._say(cluster)
                _until_one_ends(cluster)
        except KeyboardInterrupt:
            self.stdout.write("stopped")
        except OSError as exc:
            raise CommandError(f"port {port} or {port + 1} can't be used ({exc.strerror}); give --port 0") from exc
        except (ProgramEnded, NeverCame) as exc:
            raise CommandError(str(exc)) from exc

    def _say(self, cluster: Cluster) -> None:
        model = "a simulated model" if cluster.model.is_simulated else "a real model, which costs money"
        self.stdout.write(f"node A  {cluster.first.url}/\nnode B  {cluster.second.url}/")
        self.stdout.write(f"asking  {model}, calls counted at {cluster.model.url}/calls\nCtrl-C stops all of it.")
        self.stdout.flush()


def _until_one_ends(cluster: Cluster) -> None:
    def looked() -> None:
        for program in cluster.programs:
            program.check()

    wait_until(looked, timeout=float("inf"), what="the end")
