"""``python -m examples.small.from_celery``"""

import time

from examples.small.stage import begin, run_cluster


def main() -> None:
    begin("from_celery")
    from stoker import chord, schedules

    from .models import Payment
    from .tasks import add_up, price_of, send_receipt, wait_for_payment

    price = price_of.enqueue("kettle")  # was: price_of.delay("kettle")
    # It was `apply_async(args=["alice"], countdown=1, expires=3600)`:
    receipt = send_receipt.using(run_after=1, expires=3600).enqueue("alice")
    payment = wait_for_payment.enqueue("alice")
    # It was `chord([...])(add_up.s())`:
    total = chord([price_of.s("kettle"), price_of.s("teapot")], add_up.s()).enqueue()

    while not (receipt.is_finished and payment.is_finished):
        run_cluster()
        time.sleep(0.2)  # a receipt that is retried, and one that waits
        receipt.refresh()
        payment.refresh()
        if payment.attempts:  # a busy machine may have made more than one
            Payment.objects.get_or_create(customer="alice")
    print(f"price: {price.wait(60)}")  # was: price.get(timeout=60)
    print(f"receipt: {receipt.wait(60)}")
    print(f"payment: {payment.wait(60)} at attempt {payment.attempts}")
    print(f"total: {total.wait(60)}")
    print(f"schedules: {', '.join(row.name for row in schedules.find())}")


if __name__ == "__main__":
    main()
