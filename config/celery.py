"""The Celery app, `config.celery:app`; a worker or beat starts the embedded servers, an import does not."""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_init, celeryd_init

from config.servers import ServerCannotStart, start_servers

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("config")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@celeryd_init.connect
@beat_init.connect
def start_servers_of_worker(**_: Any) -> None:  # noqa: ANN401 (each signal sends its own)
    # Celery logs what a receiver raises and goes on; without its servers a worker has to end instead.
    try:
        start_servers()
    except ServerCannotStart as problem:
        raise SystemExit(str(problem)) from problem
