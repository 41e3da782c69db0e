"""For operators: newest flights by generation, replays and trace of a flight, more sums per stage and hour."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("singleflight", "0003_blob"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="flight",
            name="singleflight_flight_status",
        ),
        migrations.AddField(
            model_name="flight",
            name="replays",
            field=models.BigIntegerField(db_default=0, verbose_name="replays"),
        ),
        migrations.AddField(
            model_name="flight",
            name="trace_parent",
            field=models.CharField(blank=True, db_default="", max_length=55, verbose_name="trace parent"),
        ),
        migrations.AddField(
            model_name="stagestat",
            name="degraded",
            field=models.BigIntegerField(db_default=0, verbose_name="calls without the database"),
        ),
        migrations.AddField(
            model_name="stagestat",
            name="fenced",
            field=models.BigIntegerField(db_default=0, verbose_name="refused ends"),
        ),
        migrations.AddField(
            model_name="stagestat",
            name="replays_cache",
            field=models.BigIntegerField(db_default=0, verbose_name="replays from Redis"),
        ),
        migrations.AddField(
            model_name="stagestat",
            name="replays_process",
            field=models.BigIntegerField(db_default=0, verbose_name="replays from memory"),
        ),
        migrations.AddField(
            model_name="stagestat",
            name="runs",
            field=models.JSONField(db_default=models.Value([], models.JSONField()), verbose_name="durations of calls"),
        ),
        migrations.AddField(
            model_name="stagestat",
            name="wait_timeouts",
            field=models.BigIntegerField(db_default=0, verbose_name="callers that gave up"),
        ),
        migrations.AddField(
            model_name="stagestat",
            name="waits",
            field=models.JSONField(db_default=models.Value([], models.JSONField()), verbose_name="waits"),
        ),
        migrations.AddIndex(
            model_name="flight",
            index=models.Index(fields=["status", "-generation"], name="singleflight_flight_newest"),
        ),
    ]
