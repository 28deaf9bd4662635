"""The jobs of the tenants. The tenant is an argument of each job."""

import time

from stoker import Limit, task

from .models import Export, Order


@task(limit=Limit(1, "tenant {tenant_id}"), describe="an export of tenant {tenant_id}")
def export(tenant_id: int) -> str:
    """Export a tenant's orders. Each tenant has one export at a time; the exports of other tenants
    overtake waiting ones."""
    running = Export.objects.filter(tenant_id=tenant_id, is_running=True).count()
    mine = Export.objects.create(tenant_id=tenant_id, others=running)
    time.sleep(0.05)  # it writes a large file
    mine.items = ", ".join(Order.objects.filter(tenant_id=tenant_id).values_list("item", flat=True))
    mine.is_running = False
    mine.save()
    return mine.items
