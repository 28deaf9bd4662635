"""Add the table of deploys: the starts of clusters with new code, which charts mark."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [
        ("stoker", "0022_lock_key"),
    ]

    operations = [
        migrations.CreateModel(
            name="Deploy",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("cluster", models.CharField(max_length=100)),
                ("host", models.CharField(max_length=255)),
                ("digest", models.CharField(max_length=64)),
                ("at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "verbose_name": "deploy",
                "indexes": [models.Index(fields=["cluster", "at"], name="stoker_deploy_time")],
            },
        ),
    ]
