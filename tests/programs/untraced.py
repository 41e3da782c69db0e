"""A process of a project that has no OpenTelemetry: it makes a call, and tells what of it was imported all the same."""

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Missing(MetaPathFinder):
    """Finds no module of the package, as if it were not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Refuse what is the package's."""
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
        return None


sys.meta_path.insert(0, Missing())
os.environ["TEST_MODE"] = "local"

import django  # noqa: E402

django.setup()

from singleflight_app import GLOBAL, run  # noqa: E402
from singleflight_app.domain.spans import NO_TRACING  # noqa: E402
from singleflight_app.wiring import runtime  # noqa: E402

value = run("calm", {"key": 1}, lambda: "answer", scope=GLOBAL).value
imported = [name for name in sys.modules if name.startswith(("opentelemetry", "singleflight_app.telemetry.tracing"))]
is_traced = runtime().coordinator._tracing is not NO_TRACING
print(json.dumps({"value": value, "imported": imported, "is_traced": is_traced}))
