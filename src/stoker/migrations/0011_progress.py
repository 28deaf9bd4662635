from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("stoker", "0010_cluster_requests")]

    operations = []
