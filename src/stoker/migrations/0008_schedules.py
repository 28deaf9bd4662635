from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("stoker", "0007_paused_queues")]

    operations = []
