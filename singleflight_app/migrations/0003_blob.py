"""Names of the files that hold results too large for a row."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [
        ("singleflight", "0002_postgresql"),
    ]

    operations = [
        migrations.CreateModel(
            name="Blob",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("location", models.CharField(max_length=300, unique=True, verbose_name="location")),
                ("flight_id", models.BigIntegerField(verbose_name="flight")),
                ("generation", models.BigIntegerField(verbose_name="generation")),
                (
                    "created_at",
                    models.DateTimeField(db_default=Now(), verbose_name="created at"),
                ),
            ],
            options={
                "verbose_name": "stored result",
                "verbose_name_plural": "stored results",
                "db_table": "singleflight_blob",
                "default_permissions": (),
            },
        ),
    ]
