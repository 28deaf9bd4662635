"""Queues that are paused."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0006_cancellation")]
    operations = [
        migrations.CreateModel(
            name="PausedQueue",
            fields=[
                ("queue", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("since", models.DateTimeField()),
                ("by", models.CharField(blank=True, default="", max_length=150)),
                ("because", models.CharField(blank=True, default="", max_length=255)),
            ],
            options={"verbose_name": "paused queue"},
        ),
    ]
