"""Which database a command works on."""

from dataclasses import replace

from django.core.management.base import CommandError
from django.db import connections

from singleflight_app.conf import Settings, get_settings


def settings_with(alias: str | None) -> Settings:
    """Return the app's settings, with another alias for DATABASE if one is given.

    CommandError: it is no alias, or not PostgreSQL.
    """
    settings = get_settings()
    settings = replace(settings, database=alias or settings.database)
    if settings.database not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        raise CommandError(f"--database {settings.database!r} is no alias of DATABASES; use one of: {known}")
    vendor = connections[settings.database].vendor
    if vendor != "postgresql":
        raise CommandError(
            f"database {settings.database!r} is {vendor}, and flights are kept in PostgreSQL only; "
            "name a PostgreSQL alias with --database"
        )
    return settings
