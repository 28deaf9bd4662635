"""``python -m examples.small.shop``"""

from contextlib import suppress

from examples.small.stage import begin, run_cluster


def main() -> None:
    begin("shop")
    from django.db import transaction

    from .models import Charge, Order
    from .tasks import charge

    with transaction.atomic():
        result = charge.enqueue(Order.objects.create(item="kettle").pk)
    with suppress(ValueError), transaction.atomic():
        charge.enqueue(Order.objects.create(item="teapot").pk)
        raise ValueError("sold out")
    print("A kettle is ordered. A teapot was, too, but that was rolled back, and its job with it.")
    run_cluster()
    while not result.is_finished:  # the attempt after a crash waits for two seconds
        run_cluster()
        result.refresh()
    print(f"Orders: {Order.objects.count()}, charges: {Charge.objects.count()}.")
    print(f"The worker was killed in attempt 1; attempt {result.attempts} has charged.")


if __name__ == "__main__":
    main()
