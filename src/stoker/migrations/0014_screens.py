"""What the admin calls the queues. No table is changed: its lists read the indexes there are."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("stoker", "0013_metrics")]
    operations = [
        migrations.AlterModelOptions(
            name="pausedqueue",
            options={"verbose_name": "paused queue", "verbose_name_plural": "queues"},
        ),
    ]
