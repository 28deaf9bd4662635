"""Which claimed jobs no worker has got yet. Rows of clusters of an older Stoker count as started."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("stoker", "0016_reveal")]
    operations = [
        migrations.AddField(
            model_name="claimed",
            name="is_kept",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
