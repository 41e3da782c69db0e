"""The Django application: label `singleflight`, flights found in installed apps' `flights` modules."""

from importlib.util import find_spec

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class SingleFlightConfig(AppConfig):
    """Registers checks, metrics and the flights of installed apps."""

    name = "singleflight_app"
    label = "singleflight"
    verbose_name = _("Single flights")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the listeners, then import every installed app's `flights` module.

        A worker must know a stage's function before its first message arrives.
        """
        from singleflight_app import checks, leaving  # noqa: F401, PLC0415  (checks register themselves once apps are loaded)
        from singleflight_app.telemetry import logs  # noqa: PLC0415

        logs.connect()
        leaving.install()
        if find_spec("prometheus_client") is not None:
            from singleflight_app.telemetry import metrics  # noqa: PLC0415  (an extra)

            metrics.connect()
        autodiscover_modules("flights")
