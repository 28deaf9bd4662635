"""The permission to see hidden arguments. No table is changed."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("stoker", "0015_begun")]
    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={
                "permissions": (
                    ("cancel_job", "Can cancel jobs"),
                    ("pause_queue", "Can pause queues, and resume them"),
                    ("clear_queue", "Can clear queues"),
                    ("reveal_job", "Can see arguments that are hidden"),
                ),
                "verbose_name": "job",
            },
        ),
    ]
