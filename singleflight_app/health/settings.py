"""What the system checks say of SINGLEFLIGHT and the aliases that it names."""

from collections.abc import Iterator

from django.core.checks import ERROR, run_checks

from singleflight_app.health.finding import Finding, error, note, ok, warning

TAG = "singleflight"
LOCAL = "MODE is local: one process, nothing shared; no server is used, and none was looked at"


def check() -> Iterator[Finding]:
    """Yield each message of the checks with the tag `singleflight`, under its own id."""
    messages = [message for message in run_checks(tags=[TAG]) if not message.is_silenced()]
    for message in messages:
        make = error if message.level >= ERROR else warning
        yield make(f"settings.{message.id}", message.msg, message.hint or "See docs/settings.md.")
    if not messages:
        yield ok("settings.checks", "the system checks find nothing wrong with SINGLEFLIGHT")


def local() -> Finding:
    """Return what there is to say of servers in local mode."""
    return note(
        "settings.mode", LOCAL, 'For more than one process set MODE to "hybrid" and point DATABASE at PostgreSQL.'
    )
