"""The expected results of the feeds, and a sentence for each deviation."""

from collections import Counter
from collections.abc import Iterable, Mapping

from django.db.models import Count

from stoker.models import Attempt, Claimed, DeadLetter, Deferred, Job, Ready

from .sights import GIVEN_UP, IMPORTED, Outcome
from examples.feeds.models import Entry, Feed

EXPECTED = {
    "allotment-diary.xml": Outcome(IMPORTED, entries=6),
    "clock-museum.xml": Outcome(IMPORTED, entries=7),
    "closed-blog.xml": Outcome(GIVEN_UP, entries=0),
    "glacier-notes.xml": Outcome(IMPORTED, entries=3),
    "harbour-news.xml": Outcome(IMPORTED, entries=5, attempts=3),
    "kirchturm.xml": Outcome(IMPORTED, entries=4),
    "knitting-circle.xml": Outcome(GIVEN_UP, entries=0),
    "lighthouse-log.xml": Outcome(IMPORTED, entries=5),
    "market-prices.xml": Outcome(IMPORTED, entries=4),
    "mountain-weather.xml": Outcome(IMPORTED, entries=6),
    "night-radio.xml": Outcome(IMPORTED, entries=3),
    "old-birdwatch.xml": Outcome(IMPORTED, entries=4),
    "river-station.xml": Outcome(IMPORTED, entries=3),
    "silent-choir.xml": Outcome(IMPORTED, entries=0),
    "tea-notes.xml": Outcome(IMPORTED, entries=3),
    "village-library.xml": Outcome(IMPORTED, entries=4),
}
"""Expected results of the samples."""


def complaints_about_samples(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Check the result of each sample."""
    found = [
        f"{name} was {outcomes[name]}, and had to be {expected}."
        for name, expected in EXPECTED.items()
        if name in outcomes and outcomes[name] != expected
    ]
    return found + _differences("feeds", outcomes, EXPECTED)


def complaints_about_others(outcomes: Mapping[str, Outcome], asked: Iterable[str]) -> list[str]:
    """Check that each feed of the user was imported."""
    found = [f"{name} was {now}." for name, now in outcomes.items() if now.word != IMPORTED]
    return found + _differences("feeds", outcomes, asked)


def complaints_about_records() -> list[str]:
    """Check that each job is recorded once, with all its attempts, that no job waits, and that each
    entry is stored once."""
    jobs = {str(job.pk): job for job in Job.objects.all()}
    failures = Counter(map(str, Attempt.objects.values_list("job_id", flat=True)))
    letters = map(str, DeadLetter.objects.values_list("job_id", flat=True))
    failed = [job_id for job_id, job in jobs.items() if job.status == Job.Status.FAILED]
    found = _differences("jobs", jobs, Feed.objects.values_list("job_id", flat=True))
    found += _differences("dead letters", letters, failed)
    for job_id, job in jobs.items():
        expected = job.attempts - (job.status == Job.Status.SUCCESSFUL)
        if job.status is None:
            found.append(f"Job {job_id} has no outcome.")
        elif failures[job_id] != expected:
            found.append(f"Job {job_id} failed {expected} times; recorded are {failures[job_id]}.")
    for table in (Ready, Claimed, Deferred):
        if count := table.objects.count():
            found.append(f"{count} jobs are still in {table._meta.db_table}.")
    same = Entry.objects.values("feed", "title", "link").annotate(copies=Count("pk"))
    if doubles := same.filter(copies__gt=1).count():
        found.append(f"{doubles} entries are there more than once.")
    return found


def _differences(what: str, found: Iterable[str], expected: Iterable[str]) -> list[str]:
    there, wanted = Counter(list(found)), Counter(list(expected))
    surplus, missing = (there - wanted).elements(), (wanted - there).elements()
    sentences = [f"Too many {what}: {name}." for name in surplus]
    return sentences + [f"Missing among the {what}: {name}." for name in missing]
