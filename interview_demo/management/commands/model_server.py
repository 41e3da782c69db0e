"""`manage.py model_server`: the model server alone, for a project that is run by other means."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from interview_demo.model_server.__main__ import main


class Command(BaseCommand):
    """Serves the simulated model."""

    help = "Serve the OpenAI-compatible model of the demo; prints its address."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8089)
        parser.add_argument("--pace", type=float, default=1.0, help="factor on the thinking time")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        main(["--port", str(options["port"]), "--pace", str(options["pace"])])
