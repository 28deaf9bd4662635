"""Schedules, their ticks, and which sets of declared ones there are."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("stoker", "0007_paused_queues"),
    ]

    operations = [
        migrations.CreateModel(
            name="Edition",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("cluster", models.CharField(max_length=100)),
                ("backend", models.CharField(max_length=64)),
                ("digest", models.CharField(max_length=64)),
                ("first_seen_us", models.BigIntegerField()),
                ("seen_us", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "edition",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("cluster", "backend", "digest"), name="stoker_edition_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("cluster", models.CharField(max_length=100)),
                ("backend", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=255)),
                (
                    "source",
                    models.CharField(
                        choices=[("code", "Code"), ("settings", "Settings"), ("row", "Row")],
                        default="row",
                        max_length=8,
                    ),
                ),
                ("task", models.CharField(max_length=255)),
                ("package", models.BinaryField()),
                ("queue", models.CharField(blank=True, default="", max_length=100)),
                ("priority", models.SmallIntegerField(blank=True, null=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("cron", "Cron"), ("interval", "Interval"), ("once", "Once")],
                        max_length=8,
                    ),
                ),
                ("expression", models.CharField(blank=True, default="", max_length=255)),
                ("count", models.IntegerField(default=0)),
                ("unit", models.CharField(blank=True, default="", max_length=8)),
                ("anchor", models.CharField(blank=True, default="", max_length=40)),
                ("zone", models.CharField(max_length=64)),
                ("start_us", models.BigIntegerField(blank=True, null=True)),
                ("end_us", models.BigIntegerField(blank=True, null=True)),
                ("repeats", models.IntegerField(default=-1)),
                ("repeats_left", models.IntegerField(default=-1)),
                ("jitter_us", models.BigIntegerField(default=0)),
                (
                    "misfire",
                    models.CharField(
                        choices=[("once", "Once"), ("skip", "Skip"), ("all", "All")],
                        default="once",
                        max_length=4,
                    ),
                ),
                ("misfire_cap", models.IntegerField(default=100)),
                ("grace_us", models.BigIntegerField(default=60000000)),
                (
                    "overlap",
                    models.CharField(
                        choices=[("allow", "Allow"), ("skip", "Skip"), ("queue", "Queue")],
                        default="allow",
                        max_length=5,
                    ),
                ),
                ("moment_as", models.CharField(blank=True, default="", max_length=100)),
                ("definition", models.CharField(blank=True, default="", max_length=64)),
                ("timing", models.CharField(blank=True, default="", max_length=64)),
                ("is_paused", models.BooleanField(default=False)),
                ("paused_us", models.BigIntegerField(blank=True, null=True)),
                ("paused_by", models.CharField(blank=True, default="", max_length=150)),
                ("paused_because", models.CharField(blank=True, default="", max_length=500)),
                ("problem", models.CharField(blank=True, default="", max_length=500)),
                ("moment_us", models.BigIntegerField(blank=True, null=True)),
                ("due_us", models.BigIntegerField(blank=True, null=True)),
                ("held_us", models.BigIntegerField(blank=True, null=True)),
                ("last_moment_us", models.BigIntegerField(blank=True, null=True)),
                ("last_fired_us", models.BigIntegerField(blank=True, null=True)),
                ("last_job_id", models.UUIDField(blank=True, null=True)),
                ("fired_count", models.BigIntegerField(default=0)),
                ("missed_count", models.BigIntegerField(default=0)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "indexes": [
                    models.Index(fields=["due_us"], name="stoker_schedule_due"),
                    models.Index(fields=["held_us"], name="stoker_schedule_held"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("cluster", "backend", "name"), name="stoker_schedule_name"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Tick",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("schedule_id", models.UUIDField()),
                ("moment_us", models.BigIntegerField()),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("fired", "Fired"),
                            ("manual", "Manual"),
                            ("missed", "Missed"),
                            ("skipped", "Skipped"),
                            ("held", "Held"),
                        ],
                        max_length=7,
                    ),
                ),
                ("job_id", models.UUIDField(null=True)),
                ("fired_us", models.BigIntegerField()),
                ("count", models.IntegerField(default=1)),
                ("by", models.CharField(blank=True, default="", max_length=150)),
            ],
            options={
                "verbose_name": "tick",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("schedule_id", "moment_us"), name="stoker_tick_once"
                    )
                ],
            },
        ),
    ]
