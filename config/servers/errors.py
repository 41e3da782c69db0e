"""Why a server can't be used, in one sentence with the repair."""

from pathlib import Path

VARIABLES = {"postgres": "DATABASE_URL", "valkey": "REDIS_URL", "broker": "CELERY_BROKER_URL"}
TITLES = {"postgres": "PostgreSQL", "valkey": "Valkey", "broker": "message folder"}


class ServerCannotStart(Exception):
    """An embedded server does not run; what was stored before is untouched."""

    def __init__(self, name: str, why: str, *, repair: str = "", log: Path | None = None) -> None:
        look = f" (see {log})" if log else ""
        self.name, self.why = name, why.strip().rstrip(".") + look
        self.repair = repair or f"Repair that, or set {VARIABLES[name]} to a server of your own"
        super().__init__(f"The embedded {TITLES[name]} can't start: {self.why}. {self.repair}.")
