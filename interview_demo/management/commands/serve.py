"""`manage.py serve`: the model server and two nodes with a page to click, until Ctrl-C."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from interview_demo.demo.migrating import migrate
from interview_demo.demo.operator import Operator, invited_operator
from interview_demo.demo.processes import ProgramEnded, interruptible
from interview_demo.demo.running import Cluster, running_cluster
from interview_demo.demo.waiting import NeverCame


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
                invited_operator() as operator,
            ):
                self._say(cluster, operator)
                cluster.watch()
        except KeyboardInterrupt:
            self.stdout.write("stopped")
        except OSError as exc:
            raise CommandError(f"port {port} or {port + 1} can't be used ({exc.strerror}); give --port 0") from exc
        except (ProgramEnded, NeverCame) as exc:
            raise CommandError(str(exc)) from exc

    def _say(self, cluster: Cluster, operator: Operator) -> None:
        model = "a simulated model" if cluster.model.is_simulated else "a real model, which costs money"
        self.stdout.write(f"node A  {cluster.first.url}/\nnode B  {cluster.second.url}/")
        self.stdout.write(f"asking  {model}, calls counted at {cluster.model.url}/calls")
        self.stdout.write(f"admin   {operator.invitation(cluster.first.url)}\nCtrl-C stops all of it.")
        self.stdout.flush()
