"""Tables of the app: a flight's row is the truth about it.

The rows are written by `storage/queries.sql` alone; the ORM reads them. The second migration
adds what the ORM can't say: the generation sequence, fillfactor, and storage of the result.
Defaults are the database's, so that a statement of an older release fits a newer table.
"""

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from singleflight_app.domain.states import LIVE, Status

STATUS_LABELS = {
    Status.PENDING: _("pending"),
    Status.RUNNING: _("running"),
    Status.SUCCEEDED: _("succeeded"),
    Status.FAILED: _("failed"),
    Status.TIMED_OUT: _("timed out"),
    Status.CANCELLED: _("cancelled"),
}
_LIVE = sorted(status.value for status in LIVE)
_CHOICES = [(status.value, label) for status, label in STATUS_LABELS.items()]


class Flight(models.Model):
    """One key and its newest flight; a later grant of the key reuses the row."""

    id = models.BigAutoField(primary_key=True)
    digest = models.BinaryField(_("key digest"), max_length=32, unique=True)
    stage = models.CharField(_("stage"), max_length=100)
    scope = models.CharField(_("scope"), max_length=200)
    label = models.CharField(_("label"), max_length=200, db_default="", blank=True)
    status = models.CharField(_("status"), max_length=10, choices=_CHOICES)
    generation = models.BigIntegerField(_("generation"))
    owner = models.CharField(_("owner"), max_length=200, db_default="", blank=True)
    attempts = models.IntegerField(_("attempts"), db_default=0)
    takeovers = models.IntegerField(_("takeovers"), db_default=0)
    lease_expires_at = models.DateTimeField(_("lease expires at"), null=True, blank=True)
    heartbeat_at = models.DateTimeField(_("last heartbeat at"), null=True, blank=True)
    progress = models.JSONField(_("progress"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"), db_default=Now())
    sent_at = models.DateTimeField(_("message sent at"), null=True, blank=True)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    settled_at = models.DateTimeField(_("settled at"), null=True, blank=True)
    expires_at = models.DateTimeField(_("outcome expires at"), null=True, blank=True)
    retry_at = models.DateTimeField(_("retry from"), null=True, blank=True)
    forgotten = models.BooleanField(_("forgotten"), db_default=False)
    arguments = models.JSONField(_("arguments"), null=True, blank=True)
    result = models.BinaryField(_("result"), null=True, blank=True)
    encoding = models.CharField(_("encoding"), max_length=40, db_default="", blank=True)
    checksum = models.BinaryField(_("checksum"), max_length=32, null=True, blank=True)
    size = models.BigIntegerField(_("size in bytes"), null=True, blank=True)
    result_location = models.CharField(_("result location"), max_length=300, db_default="", blank=True)
    error_type = models.CharField(_("error type"), max_length=200, db_default="", blank=True)
    error_message = models.TextField(_("error message"), db_default="", blank=True)
    retryable = models.BooleanField(_("retryable"), db_default=False)
    model = models.CharField(_("model"), max_length=100, db_default="", blank=True)
    input_tokens = models.BigIntegerField(_("input tokens"), db_default=0)
    output_tokens = models.BigIntegerField(_("output tokens"), db_default=0)
    cost = models.DecimalField(_("cost"), max_digits=18, decimal_places=9, db_default=0)
    joins = models.BigIntegerField(_("joins"), db_default=0)
    replays = models.BigIntegerField(_("replays"), db_default=0)
    # W3C trace context of the owner's call, for whoever follows it.
    trace_parent = models.CharField(_("trace parent"), max_length=55, db_default="", blank=True)

    class Meta:
        """Beats change no indexed column, so that they stay heap-only (HOT) updates."""

        db_table = "singleflight_flight"
        verbose_name = _("flight")
        verbose_name_plural = _("flights")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("forget_flight", _("Can forget a flight's outcome")),
            ("expire_lease_flight", _("Can expire a flight's lease")),
            ("cancel_flight", _("Can cancel a flight")),
            ("retry_flight", _("Can retry a flight")),
            ("view_result_flight", _("Can read a flight's result")),
        ]
        indexes: ClassVar = [
            models.Index(fields=["stage", "id"], condition=models.Q(status__in=_LIVE), name="singleflight_flight_live"),
            models.Index(fields=["status", "-generation"], name="singleflight_flight_newest"),
            models.Index(fields=["expires_at"], name="singleflight_flight_expiry"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(status__in=sorted(status.value for status in Status)),
                name="singleflight_flight_status_known",
            ),
            models.CheckConstraint(
                condition=~models.Q(status=Status.RUNNING.value) | models.Q(lease_expires_at__isnull=False),
                name="singleflight_flight_running_has_lease",
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=_LIVE) | models.Q(expires_at__isnull=False),
                name="singleflight_flight_settled_has_expiry",
            ),
        ]

    def __str__(self) -> str:
        """Return stage and id; the scope and the key may name a person."""
        return f"{self.stage} #{self.pk}"

    @property
    def digest_hex(self) -> str:
        """The key's SHA-256 as 64 hexadecimal digits."""
        return bytes(self.digest).hex()


class FlightEvent(models.Model):
    """Audit row of one transition, written in its commit; no answer, prompt or key text in it."""

    id = models.BigAutoField(primary_key=True)
    # Without a constraint: its check would lock the flight, and SKIP LOCKED would pass it over.
    flight_id = models.BigIntegerField(_("flight"))
    digest = models.BinaryField(_("key digest"), max_length=32)
    stage = models.CharField(_("stage"), max_length=100)
    generation = models.BigIntegerField(_("generation"))
    kind = models.CharField(_("kind"), max_length=20)
    owner = models.CharField(_("owner"), max_length=200, db_default="", blank=True)
    actor = models.CharField(_("actor"), max_length=200, db_default="", blank=True)
    at = models.DateTimeField(_("at"), db_default=Now())
    detail = models.CharField(_("detail"), max_length=200, db_default="", blank=True)

    class Meta:
        """Read by flight, purged by age."""

        db_table = "singleflight_flightevent"
        verbose_name = _("flight event")
        verbose_name_plural = _("flight events")
        default_permissions = ("view",)
        indexes: ClassVar = [
            models.Index(fields=["flight_id", "id"], name="singleflight_event_flight"),
            models.Index(fields=["at"], name="singleflight_event_at"),
        ]

    def __str__(self) -> str:
        """Return what happened to which flight."""
        return f"{self.kind} flight #{self.flight_id} generation {self.generation}"


class Blob(models.Model):
    """The name of a file in the storage, noted before it is written; a purge deletes what no flight names."""

    id = models.BigAutoField(primary_key=True)
    location = models.CharField(_("location"), max_length=300, unique=True)
    # Without a constraint, as a flight event's.
    flight_id = models.BigIntegerField(_("flight"))
    generation = models.BigIntegerField(_("generation"))
    created_at = models.DateTimeField(_("created at"), db_default=Now())

    class Meta:
        """Read by id alone, by a purge."""

        db_table = "singleflight_blob"
        verbose_name = _("stored result")
        verbose_name_plural = _("stored results")
        default_permissions = ()

    def __str__(self) -> str:
        """Return the file's name."""
        return self.location


class StageStat(models.Model):
    """What one stage did in one hour (UTC): the ledger's rows, added to by a periodic flush."""

    id = models.BigAutoField(primary_key=True)
    stage = models.CharField(_("stage"), max_length=100)
    hour = models.DateTimeField(_("hour"))
    requests = models.BigIntegerField(_("requests"), db_default=0)
    calls = models.BigIntegerField(_("calls"), db_default=0)
    followers = models.BigIntegerField(_("followers"), db_default=0)
    replays = models.BigIntegerField(_("replays"), db_default=0)
    # The rest of the replays came from the database.
    replays_process = models.BigIntegerField(_("replays from memory"), db_default=0)
    replays_cache = models.BigIntegerField(_("replays from Redis"), db_default=0)
    failures = models.BigIntegerField(_("failures"), db_default=0)
    takeovers = models.BigIntegerField(_("takeovers"), db_default=0)
    fenced = models.BigIntegerField(_("refused ends"), db_default=0)
    degraded = models.BigIntegerField(_("calls without the database"), db_default=0)
    wait_timeouts = models.BigIntegerField(_("callers that gave up"), db_default=0)
    # How many waits of callers, and durations of calls, fell between two of `domain.tally.DURATION_BOUNDS`.
    waits = models.JSONField(_("waits"), db_default=models.Value([], models.JSONField()))
    runs = models.JSONField(_("durations of calls"), db_default=models.Value([], models.JSONField()))
    tokens_spent = models.BigIntegerField(_("tokens spent"), db_default=0)
    tokens_saved = models.BigIntegerField(_("tokens saved"), db_default=0)
    tokens_wasted = models.BigIntegerField(_("tokens wasted"), db_default=0)
    cost_spent = models.DecimalField(_("cost spent"), max_digits=18, decimal_places=9, db_default=0)
    cost_saved = models.DecimalField(_("cost saved"), max_digits=18, decimal_places=9, db_default=0)
    cost_wasted = models.DecimalField(_("cost wasted"), max_digits=18, decimal_places=9, db_default=0)

    class Meta:
        """One row per stage and hour."""

        db_table = "singleflight_stagestat"
        verbose_name = _("stage statistics")
        verbose_name_plural = _("stage statistics")
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["stage", "hour"], name="singleflight_stagestat_stage_hour")
        ]

    def __str__(self) -> str:
        """Return the stage and the hour."""
        return f"{self.stage} {self.hour:%Y-%m-%d %H:00}"
