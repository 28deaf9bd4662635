"""Two hosts work on the same jobs, and one is cut off: ``python examples/two-hosts/demo.py``.

The exit code is 0 if everything went as expected, and 2 if the servers are not available.
TWO_HOSTS_PROCESSES=1 uses no network namespaces, TWO_HOSTS_ORDERS=100 enqueues more jobs.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER), str(ROOT)]

from hosts import MIDDLE, addresses, enter_the_middle, open_hosts  # noqa: E402 - the path comes first
from servers import ServerUnavailableError, servers  # noqa: E402 - the path comes first

ORDERS = int(os.environ.get("TWO_HOSTS_ORDERS", "30"))
AT_MOST_SECONDS = 120


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    enter_the_middle()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="stoker-two-hosts-")))
        hosts = open_hosts()
        for host in hosts.values():
            stack.callback(host.close)
        how = "two network namespaces" if MIDDLE in os.environ else "two processes behind relays"
        say(f"Two hosts, left and right: {how}.")
        postgres, redis = stack.enter_context(servers(addresses()))
        say("Between them: one PostgreSQL, one Redis.")
        set_up(postgres.port, redis.port)
        clusters = {}
        for name, host in hosts.items():
            environment = {
                "TWO_HOSTS_NAME": name,
                "TWO_HOSTS_SERVER": host.server,
                "TWO_HOSTS_DATABASE_PORT": str(host.at(postgres.port)),
                "TWO_HOSTS_REDIS_PORT": str(host.at(redis.port)),
            }
            command = host.command(sys.executable, "-m", "django", "stoker", "run")
            place = folder / name
            clusters[name] = stack.enter_context(cluster(place, command, environment))
        return Story(hosts, clusters).tell()


def set_up(database_port: int, redis_port: int) -> None:
    """Configure this process as the web process, on the servers' side."""
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "settings",
        "TWO_HOSTS_DATABASE_PORT": str(database_port),
        "TWO_HOSTS_REDIS_PORT": str(redis_port),
        "TWO_HOSTS_NAME": "the web",
    }
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


@contextmanager
def cluster(
    place: Path, command: list[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A cluster on one host, with its own folder for temporary files."""
    place.mkdir()
    path = os.pathsep.join([str(FOLDER), str(ROOT)])
    with Path(place, "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "TMPDIR": str(place), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Story:
    """Prints the events, and checks them."""

    def __init__(self, hosts: dict[str, Any], clusters: dict[str, Any]) -> None:
        from orders.models import Packing, Payment
        from orders.tasks import charge, pack

        from stoker.models import Job

        self.hosts, self.clusters = hosts, clusters
        self.charge, self.pack = charge, pack
        self.jobs, self.payments, self.packings = Job.objects, Payment.objects, Packing.objects
        self.results: list[Any] = []

    def tell(self) -> int:
        say(f"{ORDERS} orders come in: each is to be charged (atomic), and to be packed.")
        self.order(1, ORDERS)
        self.until("both hosts are at work", lambda: {"left", "right"} <= self.at_work())
        began = time.monotonic()
        self.hosts["left"].cut()
        say("The cable of left is cut. It notices nothing: packets just do not arrive.")
        before = sum(self.ended().values())
        self.until(
            "right goes on alone",
            lambda: sum(self.ended().values()) > before or self.is_over(),
        )
        self.until("every job has ended", self.is_over)
        say(f"  after {time.monotonic() - began:.0f} s; {self.shares()}.")
        cut_off = self.packings.count() - ORDERS
        say(f"  {cut_off} parcel(s) had been begun by left, and were packed again by right.")
        lost = [name for name, process in self.clusters.items() if process.poll() is not None]
        self.hosts["left"].mend()
        say(f"The cable is mended, and {ORDERS} more orders come in.")
        by_left = self.ended()["left"]
        self.order(ORDERS + 1, 2 * ORDERS)
        self.until("left works again", lambda: self.ended()["left"] > by_left)
        self.until("every job has ended", self.is_over)
        say(f"  {self.shares()}.")
        return self.judge(lost)

    def order(self, first: int, last: int) -> None:
        """Enqueue both tasks for each order."""
        for task in (self.charge, self.pack):
            self.results += task.enqueue_many([((one,), {}) for one in range(first, last + 1)])

    def at_work(self) -> set[str]:
        return set(self.packings.values_list("host", flat=True)) & set(self.ended())

    def ended(self) -> Counter[str]:
        """Return host -> number of jobs that it has recorded."""
        open_ones = [result for result in self.results if not result.is_finished]
        done = self.jobs.filter(pk__in=[one.id for one in open_ones]).exclude(status=None)
        ended = {str(job_id) for job_id in done.values_list("pk", flat=True)}
        for result in open_ones:
            if result.id in ended:
                result.refresh()
        return Counter(one.return_value for one in self.results if one.status == "SUCCESSFUL")

    def shares(self) -> str:
        return ", ".join(f"{host} has done {count}" for host, count in sorted(self.ended().items()))

    def is_over(self) -> bool:
        return sum(self.ended().values()) == len(self.results)

    def judge(self, lost: list[str]) -> int:
        """Print an expectation, and whether it is met."""
        from stoker.conf import settings_for
        from stoker.inspect.doctor.examination import examine

        charged = Counter(self.payments.values_list("order", flat=True))
        wanted = dict.fromkeys(range(1, 2 * ORDERS + 1), 1)
        packed = set(self.packings.values_list("order", flat=True))
        findings = {
            "no cluster died": not lost,
            f"{len(self.results)} jobs are recorded, each once": self.is_over()
            and self.jobs.count() == len(self.results),
            "every order was charged just once": charged == wanted,
            "every order was packed": packed == set(wanted),
            "stoker doctor finds nothing wrong": examine(settings_for()).is_healthy,
        }
        for sentence, is_so in findings.items():
            say(f"  {'yes' if is_so else 'NO '}  {sentence}")
        return 0 if all(findings.values()) else 1

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Print what is awaited, and wait for it."""
        deadline = time.monotonic() + AT_MOST_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"In vain: that {what}.")
            time.sleep(0.1)
        say(f"  {what}")


def say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerUnavailableError as unavailable:
        say(f"It cannot be shown here: {unavailable}.")
        sys.exit(2)
