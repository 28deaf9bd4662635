"""Jobs of transactions that the broker takes no part in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0011_progress")]
    operations = [
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
            options={"verbose_name": "relayed job"},
        ),
    ]
