"""Tasks that call flights themselves, for a Celery worker whose main process has called one before it forks."""

from config.celery import app
from singleflight_app.wiring import runtime
from tests.programs.asking import ask, quick

quick("at import")
FIRST = runtime().identity.name  #: in a worker: its main process


@app.task(name="tests.ask")
def ask_in_task(folder: str, key: str) -> None:
    """Ask for a key as tests.programs.asking does."""
    ask(folder, key)
