"""``python -m examples.small.limits``"""

import time

from examples.small.stage import begin, run_cluster


def main() -> None:
    begin("limits")
    from .models import Call
    from .tasks import fetch_invoices

    names = [f"customer {number}" for number in range(12)]
    results = [fetch_invoices.enqueue(name) for name in names]
    again = [fetch_invoices.enqueue(name) for name in names]
    print(f"12 jobs, and {sum(one.was_duplicate for one in again)} clicks on the button again.")
    while not all(one.is_finished for one in results):
        run_cluster()
        time.sleep(0.2)  # blocked jobs wait for their rate
        for one in results:
            one.refresh()
    moments = sorted(Call.objects.values_list("began_at", flat=True))
    most = max(sum(one <= other < one + 0.9 for other in moments) for one in moments)
    print(f"{len(moments)} calls, at most {most} of them within a second.")


if __name__ == "__main__":
    main()
