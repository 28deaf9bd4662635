"""``python -m examples.small.tenants``"""

import time

from examples.small.stage import begin, run_cluster


def main() -> None:
    begin("tenants")
    from .models import Export, Order, Tenant
    from .tasks import export

    alice, bob = Tenant.objects.create(name="alice"), Tenant.objects.create(name="bob")
    Order.objects.create(tenant=alice, item="kettle")
    Order.objects.create(tenant=bob, item="teapot")
    results = [export.enqueue(tenant.pk) for tenant in [alice] * 12 + [bob]]
    print("alice asks for 12 exports, and bob, who comes last, for one.")
    while not all(one.is_finished for one in results):
        run_cluster()
        time.sleep(0.1)  # blocked jobs wait for their turn
        for one in results:
            one.refresh()
    ends = sorted(results, key=lambda one: str(one.finished_at))
    print(f"bob's export was number {ends.index(results[-1]) + 1} of {len(ends)} to end.")
    beside = sum(Export.objects.values_list("others", flat=True))
    print(f"Exports of one tenant that ran side by side: {beside}.")
    print(f"alice got {results[0].return_value}, bob got {results[-1].return_value}.")


if __name__ == "__main__":
    main()
