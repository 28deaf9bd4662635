"""Since when a lock has been held: the age at which it may be taken from its holder counts from
there."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0002_finished_jobs_index")]
    operations = [
        migrations.AddField(
            model_name="lock",
            name="taken_at_us",
            field=models.BigIntegerField(default=0),
        ),
    ]
