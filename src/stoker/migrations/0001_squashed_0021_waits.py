"""All tables of Stoker 0.1, for new databases.

It replaces the migrations before 0.1: a database with some of them applies the rest of them instead
(docs/decisions/0068-one-initial-migration.md).
"""

import django.db.models.functions.datetime
from django.apps.registry import Apps as StateApps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

INDEX = "stoker_job_finished"
"""Clean-up and lists of finished jobs read it. Where the database has partial indexes, it holds
only finished jobs; a conditional index in the model would warn on the other databases."""


def add_index(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    partial = schema_editor.connection.features.supports_partial_indexes
    where = " WHERE status IS NOT NULL" if partial else ""
    schema_editor.execute(
        f"CREATE INDEX {INDEX} ON {schema_editor.quote_name('stoker_job')}"
        f" (status, finished_at, id){where}"
    )


class Migration(migrations.Migration):
    replaces = [
        ("stoker", "0001_initial"),
        ("stoker", "0002_finished_jobs_index"),
        ("stoker", "0003_lock_taken_at"),
        ("stoker", "0004_guards"),
        ("stoker", "0005_dead_letters"),
        ("stoker", "0006_cancellation"),
        ("stoker", "0007_paused_queues"),
        ("stoker", "0008_schedules"),
        ("stoker", "0009_workflows"),
        ("stoker", "0010_cluster_requests"),
        ("stoker", "0011_progress"),
        ("stoker", "0012_outbox"),
        ("stoker", "0013_metrics"),
        ("stoker", "0014_screens"),
        ("stoker", "0015_begun"),
        ("stoker", "0016_reveal"),
        ("stoker", "0017_kept_claims"),
        ("stoker", "0018_bulk_operations"),
        ("stoker", "0019_log_chunks"),
        ("stoker", "0020_resize_clusters"),
        ("stoker", "0021_waits"),
    ]

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                ("number", models.SmallIntegerField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("failed", "Failed"),
                            ("timed_out", "Timed Out"),
                            ("crashed", "Crashed"),
                            ("cancelled", "Cancelled"),
                        ],
                        max_length=10,
                    ),
                ),
                ("worker_id", models.CharField(default="", max_length=128)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField()),
                ("exception_class", models.CharField(default="", max_length=255)),
                ("message", models.TextField(default="")),
                ("traceback", models.TextField(default="")),
                ("exit_code", models.SmallIntegerField(null=True)),
                ("signal", models.SmallIntegerField(null=True)),
                ("retry_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "attempt",
                "constraints": [
                    models.UniqueConstraint(fields=("job_id", "number"), name="stoker_attempt_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Lock",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("owner", models.UUIDField()),
                ("fence", models.BigIntegerField(default=1)),
                ("leased_until_us", models.BigIntegerField()),
                ("taken_at_us", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name": "lock",
            },
        ),
        migrations.CreateModel(
            name="UniqueKey",
            fields=[
                ("key_id", models.UUIDField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=255)),
                ("job_id", models.UUIDField()),
                ("taken_us", models.BigIntegerField()),
                ("until_us", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name": "unique key",
                "db_table": "stoker_unique",
            },
        ),
        migrations.CreateModel(
            name="Deferred",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("due_us", models.BigIntegerField()),
                ("queue", models.CharField(max_length=100)),
                ("rank", models.SmallIntegerField(default=0)),
                ("attempts", models.SmallIntegerField(default=0)),
                ("crashes", models.SmallIntegerField(default=0)),
                ("guards", models.SmallIntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name": "deferred job",
                "indexes": [models.Index(fields=["due_us"], name="stoker_deferred_due")],
            },
        ),
        migrations.CreateModel(
            name="Ready",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("queue", models.CharField(max_length=100)),
                ("rank", models.SmallIntegerField(default=0)),
                ("attempts", models.SmallIntegerField(default=0)),
                ("crashes", models.SmallIntegerField(default=0)),
                ("guards", models.SmallIntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name": "ready job",
                "indexes": [
                    models.Index(fields=["queue", "rank", "job_id"], name="stoker_ready_line")
                ],
            },
        ),
        migrations.CreateModel(
            name="Blocked",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("key_id", models.UUIDField()),
                ("queue", models.CharField(max_length=100)),
                ("rank", models.SmallIntegerField(default=0)),
                ("attempts", models.SmallIntegerField(default=0)),
                ("crashes", models.SmallIntegerField(default=0)),
                ("guards", models.SmallIntegerField(db_default=0, default=0)),
                ("since_us", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name": "blocked job",
                "indexes": [
                    models.Index(
                        fields=["key_id", "queue", "rank", "job_id"], name="stoker_blocked_line"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="GuardKey",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=8)),
                ("name", models.CharField(max_length=255)),
                ("fence", models.BigIntegerField(default=0)),
                ("places", models.IntegerField(default=1)),
                ("places_by", models.UUIDField(null=True)),
                ("places_set", models.IntegerField(null=True)),
                ("has_line", models.BooleanField(default=False)),
                ("period_us", models.BigIntegerField(default=0)),
                ("burst", models.IntegerField(default=0)),
                ("starts", models.JSONField(default=list)),
                ("due_us", models.BigIntegerField(null=True)),
            ],
            options={
                "verbose_name": "guard key",
                "db_table": "stoker_key",
                "indexes": [models.Index(fields=["due_us"], name="stoker_key_due")],
            },
        ),
        migrations.CreateModel(
            name="Need",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                ("key_id", models.UUIDField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("lock", "Lock"),
                            ("limit", "Limit"),
                            ("rate", "Rate"),
                            ("sequence", "Sequence"),
                        ],
                        max_length=8,
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                ("places", models.IntegerField(default=1)),
                ("weight", models.IntegerField(default=1)),
                ("period_us", models.BigIntegerField(default=0)),
                ("burst", models.IntegerField(default=0)),
                ("on_busy", models.CharField(default="wait", max_length=5)),
                ("retry_us", models.BigIntegerField(default=0)),
                ("halts", models.BooleanField(default=False)),
                ("holds", models.UUIDField(null=True)),
                ("fence", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name": "need",
                "indexes": [
                    models.Index(fields=["holds"], name="stoker_need_holders"),
                    models.Index(fields=["key_id", "job_id"], name="stoker_need_order"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Requeue",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("identity", models.CharField(db_index=True, max_length=255)),
                ("from_job_id", models.UUIDField(db_index=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("person", "Person"),
                            ("policy", "Policy"),
                            ("successor", "Successor"),
                        ],
                        default="person",
                        max_length=9,
                    ),
                ),
                ("by", models.CharField(default="", max_length=150)),
                ("because", models.CharField(default="", max_length=255)),
                (
                    "requeued_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "verbose_name": "requeue",
            },
        ),
        migrations.CreateModel(
            name="Cancellation",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("reason", models.CharField(blank=True, default="", max_length=255)),
            ],
            options={
                "verbose_name": "cancellation",
            },
        ),
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
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("identity", models.CharField(max_length=255, unique=True)),
                ("job_id", models.UUIDField(db_index=True)),
                ("task", models.CharField(max_length=255)),
                ("queue", models.CharField(max_length=100)),
                ("priority", models.SmallIntegerField(default=0)),
                ("package", models.BinaryField()),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("error", "Error"),
                            ("timeout", "Timeout"),
                            ("crash", "Crash"),
                            ("expired", "Expired"),
                            ("unreadable", "Unreadable"),
                            ("unknown_task", "Unknown Task"),
                        ],
                        max_length=12,
                    ),
                ),
                ("exception_class", models.CharField(default="", max_length=255)),
                ("message", models.TextField(default="")),
                ("traceback", models.TextField(default="")),
                ("fingerprint", models.CharField(db_index=True, default="", max_length=64)),
                ("attempts", models.SmallIntegerField(default=0)),
                ("worker_id", models.CharField(default="", max_length=128)),
                ("failure_count", models.IntegerField(default=1)),
                (
                    "first_failed_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "failed_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("closed_at", models.DateTimeField(null=True)),
                ("closed_because", models.CharField(db_default="", default="", max_length=255)),
                ("closed_by", models.CharField(db_default="", default="", max_length=150)),
                ("enqueued_at", models.DateTimeField(null=True)),
                ("key", models.CharField(db_default="", default="", max_length=255)),
                ("last_requeued_at", models.DateTimeField(null=True)),
                (
                    "last_requeued_because",
                    models.CharField(db_default="", default="", max_length=255),
                ),
                ("last_requeued_by", models.CharField(db_default="", default="", max_length=150)),
                ("requeue_due_us", models.BigIntegerField(null=True)),
                ("requeued_count", models.IntegerField(db_default=0, default=0)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("requeued", "Requeued"),
                            ("resolved", "Resolved"),
                            ("discarded", "Discarded"),
                        ],
                        db_default="open",
                        default="open",
                        max_length=9,
                    ),
                ),
                ("successor_id", models.UUIDField(null=True)),
            ],
            options={
                "verbose_name": "dead letter",
                "indexes": [
                    models.Index(fields=["failed_at", "id"], name="stoker_dead_newest"),
                    models.Index(fields=["task", "failed_at", "id"], name="stoker_dead_of_task"),
                    models.Index(fields=["state", "failed_at"], name="stoker_dead_state"),
                    models.Index(fields=["requeue_due_us"], name="stoker_dead_due"),
                ],
                "permissions": (
                    ("requeue_deadletter", "Can send dead letters again"),
                    ("discard_deadletter", "Can discard dead letters"),
                    ("purge_deadletter", "Can delete closed dead letters for good"),
                ),
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
                "permissions": (
                    ("run_schedule", "Can run schedules now"),
                    ("pause_schedule", "Can pause schedules, and resume them"),
                ),
            },
        ),
        migrations.CreateModel(
            name="Cluster",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100)),
                ("host", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("quiet", "Quiet"),
                            ("stopping", "Stopping"),
                        ],
                        default="running",
                        max_length=10,
                    ),
                ),
                ("heartbeat_us", models.BigIntegerField(db_index=True)),
                ("started_at", models.DateTimeField()),
                ("info", models.JSONField(default=dict)),
                (
                    "request",
                    models.CharField(
                        blank=True,
                        choices=[("", "None"), ("quiet", "Quiet"), ("stop", "Stop")],
                        db_default="",
                        default="",
                        max_length=5,
                    ),
                ),
                (
                    "recycle",
                    models.CharField(blank=True, db_default="", default="", max_length=8000),
                ),
                ("workers", models.PositiveSmallIntegerField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "cluster",
                "permissions": (
                    (
                        "quiet_cluster",
                        "Can tell clusters to take no more jobs, and to take them again",
                    ),
                    ("stop_cluster", "Can stop clusters"),
                ),
            },
        ),
        migrations.CreateModel(
            name="Note",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("checkpoint", models.BinaryField(null=True)),
                ("done", models.FloatField(null=True)),
                ("total", models.FloatField(null=True)),
                ("message", models.CharField(default="", max_length=255)),
                ("noted_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "note",
            },
        ),
        migrations.CreateModel(
            name="Outgoing",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=100)),
                ("task", models.CharField(max_length=255)),
                ("queue", models.CharField(max_length=100)),
                ("priority", models.SmallIntegerField(default=0)),
                ("package", models.BinaryField()),
                ("enqueued_at", models.FloatField()),
                ("run_after", models.FloatField(null=True)),
                ("needs", models.JSONField(default=list)),
                ("stays_in_store", models.BooleanField(default=False)),
                ("claim", models.JSONField(null=True)),
            ],
            options={
                "verbose_name": "outgoing job",
                "db_table": "stoker_outbox",
                "indexes": [models.Index(fields=["backend", "job_id"], name="stoker_outbox_line")],
            },
        ),
        migrations.CreateModel(
            name="Relayed",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("relayed_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "verbose_name": "relayed job",
            },
        ),
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
        migrations.CreateModel(
            name="PausedQueue",
            fields=[
                ("queue", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("since", models.DateTimeField()),
                ("by", models.CharField(blank=True, default="", max_length=150)),
                ("because", models.CharField(blank=True, default="", max_length=255)),
            ],
            options={
                "verbose_name": "paused queue",
                "verbose_name_plural": "queues",
            },
        ),
        migrations.CreateModel(
            name="Begun",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("worker_id", models.CharField(max_length=128)),
                ("begun_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "verbose_name": "begun job",
                "verbose_name_plural": "begun jobs",
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("task", models.CharField(max_length=255)),
                ("queue", models.CharField(max_length=100)),
                ("priority", models.SmallIntegerField(default=0)),
                ("package", models.BinaryField()),
                ("enqueued_at", models.DateTimeField()),
                ("run_after", models.DateTimeField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("SUCCESSFUL", "Successful"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        max_length=10,
                        null=True,
                    ),
                ),
                ("attempts", models.SmallIntegerField(default=0)),
                ("worker_id", models.CharField(default="", max_length=128)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("value", models.BinaryField(null=True)),
                ("reason", models.CharField(default="", max_length=255)),
            ],
            options={
                "verbose_name": "job",
                "permissions": (
                    ("cancel_job", "Can cancel jobs"),
                    ("pause_queue", "Can pause queues, and resume them"),
                    ("clear_queue", "Can clear queues"),
                    ("reveal_job", "Can see arguments that are hidden"),
                ),
            },
        ),
        migrations.CreateModel(
            name="Claimed",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("lease_id", models.BigIntegerField()),
                ("holder", models.UUIDField()),
                ("leased_until_us", models.BigIntegerField()),
                ("queue", models.CharField(max_length=100)),
                ("rank", models.SmallIntegerField(default=0)),
                ("attempts", models.SmallIntegerField(default=1)),
                ("crashes", models.SmallIntegerField(default=0)),
                ("guards", models.SmallIntegerField(db_default=0, default=0)),
                ("is_kept", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "verbose_name": "claimed job",
            },
        ),
        migrations.CreateModel(
            name="Wait",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                ("attempts", models.SmallIntegerField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("lock", "Lock"),
                            ("limit", "Limit"),
                            ("rate", "Rate"),
                            ("sequence", "Sequence"),
                            ("put_back", "Put Back"),
                            ("start_time", "Start Time"),
                        ],
                        max_length=10,
                    ),
                ),
                ("name", models.CharField(default="", max_length=255)),
                ("began_us", models.BigIntegerField()),
                ("total_us", models.BigIntegerField()),
                ("times", models.IntegerField(db_default=1, default=1)),
            ],
            options={
                "verbose_name": "wait",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("job_id", "attempts", "kind", "name"), name="stoker_wait_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="LogChunk",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                ("attempt", models.SmallIntegerField()),
                ("lines", models.TextField()),
                ("keep_until", models.DateTimeField()),
            ],
            options={
                "verbose_name": "part of a job's log",
                "indexes": [
                    models.Index(fields=["job_id", "id"], name="stoker_log_job"),
                    models.Index(fields=["keep_until"], name="stoker_log_until"),
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkItem",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("bulk_id", models.UUIDField()),
                ("target", models.UUIDField()),
                ("refusal", models.CharField(default="", max_length=255)),
                ("before", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name": "target of a bulk operation",
                "constraints": [
                    models.UniqueConstraint(fields=("bulk_id", "target"), name="stoker_bulk_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkOperation",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=100)),
                ("operation", models.CharField(max_length=50)),
                ("filters", models.JSONField(default=dict)),
                ("options", models.JSONField(default=dict)),
                ("by", models.CharField(default="", max_length=150)),
                ("because", models.CharField(default="", max_length=255)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("paused", "Paused"),
                            ("stopped", "Stopped"),
                            ("done", "Done"),
                        ],
                        default="running",
                        max_length=7,
                    ),
                ),
                ("cursor", models.CharField(default="", max_length=200)),
                ("matched", models.IntegerField(default=0)),
                ("is_counted", models.BooleanField(default=True)),
                ("done", models.IntegerField(default=0)),
                ("refused", models.IntegerField(default=0)),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                ("undoes", models.UUIDField(null=True, unique=True)),
            ],
            options={
                "verbose_name": "bulk operation",
                "indexes": [models.Index(fields=["state", "id"], name="stoker_bulk_state")],
            },
        ),
        # MariaDB and MySQL cannot roll back DDL, so Django refuses it in a transaction.
        # Unapplying drops the table, and the index with it.
        migrations.RunPython(add_index, migrations.RunPython.noop, atomic=False),
    ]
