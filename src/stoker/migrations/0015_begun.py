"""Which jobs of tasks with ``at_most_once=True`` have begun."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0014_screens")]
    operations = [
        migrations.CreateModel(
            name="Begun",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("worker_id", models.CharField(max_length=128)),
                ("begun_at", models.DateTimeField(db_index=True)),
            ],
            options={"verbose_name": "begun job", "verbose_name_plural": "begun jobs"},
        ),
    ]
