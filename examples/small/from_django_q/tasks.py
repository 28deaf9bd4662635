"""The functions of the project. As with Django Q, they need no decorator."""

from stoker.contrib.django_q.models import Task  # was: from django_q.models import Task


def price_of(item: str) -> int:
    """Return a price."""
    return {"kettle": 30, "teapot": 20}[item]


def thank(task: Task) -> None:
    """Greet: a hook."""
    print(f"The hook got {task.result} of {task.name}.", flush=True)
