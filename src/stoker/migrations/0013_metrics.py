"""The history of metrics."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0012_outbox")]
    operations = [
        migrations.CreateModel(
            name="Sample",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("start", models.BigIntegerField()),
                ("seconds", models.IntegerField()),
                ("queue", models.CharField(max_length=100)),
                ("ready", models.BigIntegerField(default=0)),
                ("deferred", models.BigIntegerField(default=0)),
                ("blocked", models.BigIntegerField(default=0)),
                ("running", models.BigIntegerField(default=0)),
                ("oldest_ready_seconds", models.FloatField(null=True)),
            ],
            options={
                "verbose_name": "sample",
                "indexes": [models.Index(fields=["seconds", "start"], name="stoker_sample_time")],
            },
        ),
        migrations.CreateModel(
            name="Tally",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("start", models.BigIntegerField()),
                ("seconds", models.IntegerField()),
                ("queue", models.CharField(max_length=100)),
                ("task", models.CharField(max_length=255)),
                ("successful", models.BigIntegerField(default=0)),
                ("failed", models.BigIntegerField(default=0)),
                ("cancelled", models.BigIntegerField(default=0)),
                ("retried", models.BigIntegerField(default=0)),
                ("run_seconds", models.FloatField(default=0)),
                ("wait_seconds", models.FloatField(default=0)),
                ("run_classes", models.JSONField(default=dict)),
                ("wait_classes", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name": "tally",
                "verbose_name_plural": "tallies",
                "indexes": [models.Index(fields=["seconds", "start"], name="stoker_tally_time")],
            },
        ),
    ]
