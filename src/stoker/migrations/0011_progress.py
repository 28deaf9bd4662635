"""What jobs note while they run."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0010_cluster_requests")]
    operations = [
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
            options={"verbose_name": "note"},
        ),
    ]
