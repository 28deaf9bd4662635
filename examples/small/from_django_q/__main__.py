"""``python -m examples.small.from_django_q``"""

from django.core.management import call_command

from examples.small.stage import begin, run_cluster


def main() -> None:
    begin("from_django_q", "examples.small.from_django_q.settings")
    from stoker.contrib.django_q.models import Schedule, Success  # was: django_q.models
    from stoker.contrib.django_q.tasks import (  # was: django_q.tasks
        Chain,
        async_task,
        result,
        result_group,
        schedule,
    )

    from . import before

    prices = "examples.small.from_django_q.tasks.price_of"
    before.leave_a_task(prices, "teapot")
    call_command("stoker", "import_django_q")

    hook = "examples.small.from_django_q.tasks.thank"
    kettle = async_task(prices, "kettle", task_name="price of a kettle", hook=hook)
    for item in ("kettle", "teapot"):
        async_task(prices, item, group="prices")
    chain = Chain()
    chain.append("math.floor", 1.5)
    chain.append("math.ceil", 1.5)
    chain.run()
    schedule("math.copysign", 2, -2, name="nightly", schedule_type=Schedule.DAILY)
    run_cluster()
    print(f"The task that Django Q had left: {result('left by Django Q')}.")
    print(f"The kettle: {result(kettle)}, the group: {sorted(result_group('prices') or [])}.")
    print(f"The chain: {chain.result()}.")
    print(f"Rows of Success: {Success.objects.count()}.")


if __name__ == "__main__":
    main()
