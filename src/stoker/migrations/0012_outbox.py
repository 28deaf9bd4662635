from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("stoker", "0011_progress")]

    operations = []
