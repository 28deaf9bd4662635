"""What jobs waited for. Times before this migration stay unknown."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("stoker", "0020_resize_clusters"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="retry_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="blocked",
            name="since_us",
            field=models.BigIntegerField(db_default=0, default=0),
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
    ]
