"""Empty: 0001_initial creates the tables as they are after Django Q's migration of this name."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = (("django_q", "0006_auto_20150805_1817"),)
