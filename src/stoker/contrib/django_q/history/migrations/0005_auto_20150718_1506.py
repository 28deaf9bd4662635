"""Empty: 0001_initial creates the tables as they are after Django Q's migration of this name."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = (("django_q", "0004_auto_20150710_1043"),)
