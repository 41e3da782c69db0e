"""Every process of the project, web node or worker, sends its tasks to the project's broker."""

from importlib import import_module

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    """Loads the Celery app, which `shared_task` looks for in whatever process calls it."""

    name = "config"
    verbose_name = "Project"

    def ready(self) -> None:
        import_module("config.celery")
