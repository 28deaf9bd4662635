"""Workflows and their steps."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("stoker", "0008_schedules"),
    ]

    operations = [
        migrations.CreateModel(
            name="Step",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("workflow_id", models.UUIDField()),
                ("parent_id", models.UUIDField(null=True)),
                ("position", models.IntegerField(default=0)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("task", "Task"),
                            ("chain", "Chain"),
                            ("group", "Group"),
                            ("chord", "Chord"),
                            ("map", "Map"),
                        ],
                        max_length=5,
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[("step", "Step"), ("undo", "Undo"), ("error", "Error")],
                        default="step",
                        max_length=5,
                    ),
                ),
                ("label", models.CharField(default="", max_length=255)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("HELD", "Held"),
                            ("PENDING", "Pending"),
                            ("ENQUEUED", "Enqueued"),
                            ("STARTED", "Started"),
                            ("UNDOING", "Undoing"),
                            ("SUCCESSFUL", "Successful"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="PENDING",
                        max_length=10,
                    ),
                ),
                ("job_id", models.UUIDField(null=True, unique=True)),
                ("sealed", models.BinaryField(null=True)),
                ("value", models.BinaryField(null=True)),
                ("cause", models.UUIDField(null=True)),
                ("is_optional", models.BooleanField(default=False)),
                ("is_wanted", models.BooleanField(default=False)),
                ("fails_fast", models.BooleanField(default=False)),
                ("size", models.IntegerField(default=0)),
                ("at_once", models.IntegerField(null=True)),
                ("has_more", models.BooleanField(default=False)),
                ("has_undo", models.BooleanField(default=False)),
                ("has_error", models.BooleanField(default=False)),
                ("has_added", models.BooleanField(default=False)),
                ("added_in", models.SmallIntegerField(null=True)),
            ],
            options={
                "verbose_name": "step",
                "indexes": [
                    models.Index(
                        fields=["parent_id", "role", "state", "position"], name="stoker_step_of"
                    ),
                    models.Index(
                        fields=["workflow_id", "kind", "state"], name="stoker_step_counts"
                    ),
                    models.Index(fields=["state", "id"], name="stoker_step_state"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Workflow",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("name", models.CharField(default="", max_length=255)),
                ("backend", models.CharField(max_length=100)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("RUNNING", "Running"),
                            ("SUCCESSFUL", "Successful"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="RUNNING",
                        max_length=10,
                    ),
                ),
                ("tasks", models.IntegerField(default=0)),
                (
                    "made_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("finished_at", models.DateTimeField(null=True)),
                ("reason", models.CharField(default="", max_length=255)),
                ("has_values", models.BooleanField(default=True)),
            ],
            options={
                "verbose_name": "workflow",
                "indexes": [
                    models.Index(fields=["state", "finished_at"], name="stoker_workflow_ended"),
                    models.Index(fields=["made_at", "id"], name="stoker_workflow_newest"),
                ],
            },
        ),
    ]
