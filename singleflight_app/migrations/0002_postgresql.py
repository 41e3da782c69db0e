"""What the ORM can't say, on PostgreSQL only; other backends run it as nothing."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

FORWARDS = (
    # CACHE 1: a session that kept values back would hand out an older generation after a newer one.
    "create sequence singleflight_generation_seq as bigint cache 1",
    # Beats rewrite a row every few seconds; room on the page keeps them heap-only.
    "alter table singleflight_flight set (fillfactor = 80)",
    # Results come compressed; trying again on each write costs time and finds nothing.
    "alter table singleflight_flight alter column result set storage external",
)
BACKWARDS = (
    "alter table singleflight_flight alter column result set storage extended",
    "alter table singleflight_flight reset (fillfactor)",
    "drop sequence singleflight_generation_seq",
)


def _execute(schema_editor: BaseDatabaseSchemaEditor, statements: tuple[str, ...]) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    for statement in statements:
        schema_editor.execute(statement)


def forwards(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Create the sequence and set the storage options."""
    _execute(schema_editor, FORWARDS)


def backwards(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Undo `forwards`."""
    _execute(schema_editor, BACKWARDS)


class Migration(migrations.Migration):
    """Generation sequence, fillfactor, external storage of results."""

    dependencies = (("singleflight", "0001_initial"),)
    operations = (migrations.RunPython(forwards, backwards),)
