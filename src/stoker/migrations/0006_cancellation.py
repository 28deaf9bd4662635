"""Requests to end jobs that run."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0005_dead_letters")]
    operations = [
        migrations.CreateModel(
            name="Cancellation",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("reason", models.CharField(blank=True, default="", max_length=255)),
            ],
            options={"verbose_name": "cancellation"},
        ),
    ]
