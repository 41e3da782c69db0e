"""`manage.py singleflight_sweep`: what the sweep task does, for projects without Celery beat."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from singleflight_app import api
from singleflight_app.domain.exceptions import SingleFlightError


class Command(BaseCommand):
    help = "Settles or queues again the flights whose owners died with nobody waiting, and sends lost messages again."

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  (Django's signature)
        """Sweep once and print one line."""
        try:
            swept = api.sweep()
        except SingleFlightError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(
            f"queued again: {swept.requeued}, settled as lost: {swept.lost}, "
            f"messages sent again: {swept.resent}, failed: {swept.failed}"
        )
