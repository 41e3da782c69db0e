"""Brings the database up to date, one program at a time: two demos may start at once on an empty one."""

from django.core.management import call_command
from django.db import connection

_LOCK = 20_261_130  #: any number that nobody else takes as an advisory lock in this database


def migrate() -> None:
    """Run the migrations; a second program waits and then finds nothing to do."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_lock(%s)", [_LOCK])
        try:
            call_command("migrate", verbosity=0, interactive=False)
        finally:
            cursor.execute("select pg_advisory_unlock(%s)", [_LOCK])
