"""What clusters are asked to do through the store; permissions for what people do."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0009_workflows")]

    operations = [
        migrations.AlterModelOptions(
            name="cluster",
            options={
                "permissions": (
                    (
                        "quiet_cluster",
                        "Can tell clusters to take no more jobs, and to take them again",
                    ),
                    ("stop_cluster", "Can stop clusters"),
                ),
                "verbose_name": "cluster",
            },
        ),
        migrations.AlterModelOptions(
            name="deadletter",
            options={
                "permissions": (
                    ("requeue_deadletter", "Can send dead letters again"),
                    ("discard_deadletter", "Can discard dead letters"),
                    ("purge_deadletter", "Can delete closed dead letters for good"),
                ),
                "verbose_name": "dead letter",
            },
        ),
        migrations.AlterModelOptions(
            name="job",
            options={
                "permissions": (
                    ("cancel_job", "Can cancel jobs"),
                    ("pause_queue", "Can pause queues, and resume them"),
                    ("clear_queue", "Can clear queues"),
                ),
                "verbose_name": "job",
            },
        ),
        migrations.AlterModelOptions(
            name="schedule",
            options={
                "permissions": (
                    ("run_schedule", "Can run schedules now"),
                    ("pause_schedule", "Can pause schedules, and resume them"),
                ),
                "verbose_name": "schedule",
            },
        ),
        migrations.AddField(
            model_name="cluster",
            name="request",
            field=models.CharField(
                blank=True,
                choices=[("", "None"), ("quiet", "Quiet"), ("stop", "Stop")],
                db_default="",
                default="",
                max_length=5,
            ),
        ),
        migrations.AlterField(
            model_name="cluster",
            name="state",
            field=models.CharField(
                choices=[("running", "Running"), ("quiet", "Quiet"), ("stopping", "Stopping")],
                default="running",
                max_length=10,
            ),
        ),
    ]
