"""Tests of the demo's own parts; tests/test_examples.py plays it as a whole."""
# ruff: noqa: PT009 - written for `manage.py test`, as Django has it

from contextlib import redirect_stdout
from io import StringIO

from django.test import TestCase
from django.utils import timezone

from stoker.models import Attempt, DeadLetter, Job

from . import verdict
from .sample_server import SampleServer
from .sights import Looker, Outcome
from .terminal import Progress
from examples.feeds.models import Feed
from examples.feeds.tasks import import_feed


class VerdictTests(TestCase):
    def test_what_must_be_is_fine(self) -> None:
        self.assertEqual(verdict.complaints_about_samples(verdict.EXPECTED), [])

    def test_every_sample_is_served_and_expected(self) -> None:
        with SampleServer(in_haste=True) as server:
            self.assertEqual(sorted(map(server.url, verdict.EXPECTED)), server.urls())

    def test_an_attempt_too_few_is_told(self) -> None:
        outcomes = verdict.EXPECTED | {"harbour-news.xml": Outcome("imported", 5, attempts=1)}
        (complaint,) = verdict.complaints_about_samples(outcomes)
        self.assertIn("harbour-news.xml was imported with 5 entries at attempt 1", complaint)

    def test_a_missing_feed_is_told(self) -> None:
        outcomes = dict(verdict.EXPECTED)
        del outcomes["tea-notes.xml"]
        (complaint,) = verdict.complaints_about_samples(outcomes)
        self.assertEqual(complaint, "Missing among the feeds: tea-notes.xml.")

    def test_a_feed_of_the_user_that_failed_is_told(self) -> None:
        outcomes = {"one": Outcome("imported", 3), "other": Outcome("given up", 0)}
        (complaint,) = verdict.complaints_about_others(outcomes, ["one", "other"])
        self.assertIn("other was given up", complaint)


class RecordTests(TestCase):
    def setUp(self) -> None:
        job_id = import_feed.enqueue(1).id
        Feed.objects.create(url="https://feeds.example/", job_id=job_id)
        self.job = Job.objects.get()

    def test_a_waiting_job_is_told(self) -> None:
        complaints = " ".join(verdict.complaints_about_records())
        self.assertIn("has no outcome", complaints)
        self.assertIn("1 jobs are still in stoker_ready", complaints)

    def test_a_missing_dead_letter_is_told(self) -> None:
        Job.objects.update(status=Job.Status.FAILED, attempts=1)
        complaints = " ".join(verdict.complaints_about_records())
        self.assertIn(f"Missing among the dead letters: {self.job.pk}", complaints)
        self.assertIn("failed 1 times; recorded are 0", complaints)

    def test_a_lost_job_is_told(self) -> None:
        Job.objects.all().delete()
        self.assertIn(f"Missing among the jobs: {self.job.pk}.", verdict.complaints_about_records())

    def test_a_job_of_nobody_is_told(self) -> None:
        Feed.objects.all().delete()
        self.assertIn(f"Too many jobs: {self.job.pk}.", verdict.complaints_about_records())

    def test_a_dead_letter_too_many_is_told(self) -> None:
        Job.objects.update(status=Job.Status.SUCCESSFUL, attempts=1)
        DeadLetter.objects.create(id=self.job.pk, job_id=self.job.pk, package=b"", reason="error")
        Attempt.objects.create(job_id=self.job.pk, number=1, finished_at=timezone.now())
        complaints = " ".join(verdict.complaints_about_records())
        self.assertIn("Too many dead letters", complaints)
        self.assertIn("failed 0 times; recorded are 1", complaints)


class LookerTests(TestCase):
    def test_a_feed_has_the_name_it_is_called_by(self) -> None:
        job_id = import_feed.enqueue(1).id
        Feed.objects.create(url="http://127.0.0.1:1/tea.xml", job_id=job_id)
        (name,) = Looker({}).look()
        self.assertEqual(name, "127.0.0.1:1/tea.xml")
        ((name, sight),) = Looker({"http://127.0.0.1:1/tea.xml": "tea.xml"}).look().items()
        self.assertEqual((name, sight.row, sight.is_over), ("tea.xml", ("waiting", ""), False))


class TerminalTests(TestCase):
    def test_elsewhere_than_on_a_terminal_only_changes_are_shown(self) -> None:
        progress = Progress()
        with redirect_stdout(StringIO()) as shown:
            progress.show({"a": ("waiting", ""), "b": ("waiting", "")})
            progress.show({"a": ("waiting", ""), "b": ("imported", "3 entries")})
            progress.show({"a": ("waiting", ""), "b": ("imported", "3 entries")})
        lines = [line.split() for line in shown.getvalue().splitlines()]
        expected = [["a", "waiting"], ["b", "waiting"], ["b", "imported", "3", "entries"]]
        self.assertEqual(lines, expected)
