"""Rename the model ``Lock``, so that ``Lock`` is only the declaration in ``@task``. The table keeps
its name."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("stoker", "0001_squashed_0021_waits"),
    ]

    operations = [
        migrations.AlterModelTable(name="lock", table="stoker_lock"),
        migrations.RenameModel(old_name="Lock", new_name="LockKey"),
    ]
