"""All log messages of Stoker, and the name of the job on every log record that is made inside a
task."""

from __future__ import annotations

import logging
from typing import Any

from stoker.jobs.running import current, job_lines
from stoker.signals import event
from stoker.values.text import plural

logger = logging.getLogger("stoker")

SENTENCES: dict[str, tuple[int, str]] = {
    "cluster_started": (
        logging.INFO,
        "Cluster {name} started on {host}: {workers} workers, queues {queues}, process {pid}.",
    ),
    "cluster_stopping": (logging.INFO, "Stopping: running jobs have {seconds:g} s to finish."),
    "cluster_asked": (logging.INFO, "{by} asked the cluster {cluster_id}: {what}."),
    "cluster_quiet": (
        logging.INFO,
        "This cluster was asked to take no more jobs; running jobs continue.",
    ),
    "cluster_resumed": (logging.INFO, "This cluster takes jobs again."),
    "cluster_resized": (
        logging.INFO,
        "This cluster now has {workers} workers instead of {before}.",
    ),
    "cluster_stopped": (logging.INFO, "Cluster {name} stopped."),
    "queue_paused": (logging.INFO, "The queue {queue} is paused{how}."),
    "queue_resumed": (logging.INFO, "The queue {queue} is resumed."),
    "drained_but_paused": (
        logging.WARNING,
        "Drained, except paused queues: {queues}.",
    ),
    "drained_without_rescue": (
        logging.WARNING,
        "Drained before upkeep could rescue the jobs of clusters without a heartbeat.",
    ),
    "cluster_reloading": (logging.INFO, "Reloading the code: {why}."),
    "reload_refused": (
        logging.ERROR,
        "The new code does not start, so the old code keeps running until the next change: {error}",
    ),
    "reload_not_tried": (
        logging.ERROR,
        "The new code could not be tried, so the old code keeps running: {error}",
    ),
    "reload_in_old_directory": (
        logging.ERROR,
        (
            "The directory {directory} is gone, so the cluster starts again in the old one, and "
            "stays there until you restart it: {error}"
        ),
    ),
    "shutdown_deadline": (
        logging.WARNING,
        (
            "The time to finish is over: {count:running job is|running jobs are} interrupted and "
            "released."
        ),
    ),
    "process_died": (logging.ERROR, "The {role} died ({how}); starting another."),
    "process_not_started": (
        logging.ERROR,
        "Another {role} could not be started ({error}); retrying later.",
    ),
    "process_not_connected": (
        logging.ERROR,
        "The {role} could not be connected with the pusher ({error}); retrying later.",
    ),
    "transaction_left_open": (
        logging.ERROR,
        "A task left a transaction open on the database {database!r}; it is rolled back.",
    ),
    "process_hung": (
        logging.ERROR,
        "The {role} has not responded for {seconds:.0f} s; killing it.",
    ),
    "worker_died": (logging.ERROR, "Worker {worker} died ({how}) while running {jobs}."),
    "worker_idle_died": (logging.ERROR, "Worker {worker} died ({how}) while idle."),
    "worker_killed": (logging.WARNING, "Worker {worker} was killed: {why}."),
    "worker_recycled": (logging.INFO, "Worker {worker} is replaced: {why}."),
    "lease_lost": (
        logging.WARNING,
        "The lease of job {job_id} is lost, or cannot be extended. The job is stopped.",
    ),
    "broker_unreachable": (logging.WARNING, "{error} Trying again in {seconds:.1f} s."),
    "rows_locked": (logging.WARNING, "{error} Trying again in {seconds:.1f} s."),
    "queue_refused": (logging.WARNING, "{error} The other queues are served."),
    "broker_back": (logging.INFO, "The broker answers again after {seconds:.1f} s."),
    "results_not_cached": (
        logging.WARNING,
        "Results could not be put into the cache {name!r} ({error}), and stay in the database.",
    ),
    "results_not_read": (
        logging.WARNING,
        "The cache {name!r} could not be read ({error}): its results count as missing.",
    ),
    "parcels_not_dropped": (
        logging.WARNING,
        "The broker could not delete delivered messages and will deliver them again: {error}",
    ),
    "job_name_escaped": (
        logging.WARNING,
        "The database cannot store the task or queue name of job {job_id} ({error}) unescaped.",
    ),
    "parcel_refused": (
        logging.ERROR,
        "The database refuses job {job_id} ({error}). The broker will deliver it again.",
    ),
    "record_failed": (
        logging.ERROR,
        "The outcome of job {job_id} cannot be recorded ({error}): the job counts as failed.",
    ),
    "records_wait": (
        logging.WARNING,
        "{count:outcome waits|outcomes wait} for rows that other transactions have locked.",
    ),
    "record_put_off": (
        logging.ERROR,
        "The outcome of job {job_id} could not be recorded ({error}); it is kept and retried.",
    ),
    "logs_not_written": (
        logging.WARNING,
        "Logs of jobs could not be written, and are retried: {error} Parts dropped: {count}.",
    ),
    "put_back": (logging.INFO, "Job {job_id} is released{delay}: {reason}"),
    "not_runnable_here": (
        logging.WARNING,
        "Job {job_id} cannot run here, and is released{delay} (warned once): {reason}",
    ),
    "job_started": (logging.INFO, "{task}[{short_id}] started, attempt {attempt}"),
    "job_ended": (
        logging.INFO,
        "{task}[{short_id}] {outcome} in {seconds:.3f} s, attempt {attempt}",
    ),
    "attempt_failed": (
        logging.WARNING,
        "{task}[{job_id}] {happened}{after}, attempt {attempt}: {error}. {follows}.",
    ),
    "dead_lettered": (
        logging.ERROR,
        "Job {job_id} of {task} is a dead letter (attempts: {attempts}): {reason}{error}.",
    ),
    "dead_letters_requeued": (
        logging.INFO,
        "{count:dead letter was|dead letters were} requeued automatically after the cool-down.",
    ),
    "dead_letters_purged": (
        logging.INFO,
        "{count:old dead letter was|old dead letters were} removed.",
    ),
    "not_requeued": (
        logging.ERROR,
        "The dead letter {dead_letter_id} could not be requeued automatically: {because}",
    ),
    "hook_failed": (logging.ERROR, "The {hook} of {task} raised {error!r}."),
    "callback_stuck": (
        logging.ERROR,
        "The {what} has not returned for {seconds:.0f} s. The next calls do not wait for it.",
    ),
    "callback_failed": (logging.ERROR, "The {what} raised {error!r}."),
    "callbacks_left_out": (
        logging.ERROR,
        (
            "{count:call of a receiver or hook was|calls of receivers and hooks were} dropped: "
            "earlier calls do not return."
        ),
    ),
    "stale_outcome": (
        logging.WARNING,
        (
            "The outcome of job {job_id} came after its lease was lost, and was not recorded: "
            "another cluster has the job, its outcome is recorded already, or the broker has lost "
            "the job."
        ),
    ),
    "relay_put_off": (
        logging.WARNING,
        "Jobs that were just committed wait in the outbox until the broker is reachable: {error}",
    ),
    "slots_unreachable": (
        logging.WARNING,
        "A node of a Redis cluster is down; jobs on the other nodes are served meanwhile: {error}",
    ),
    "queue_unreadable": (
        logging.ERROR,
        (
            "Jobs of the queue {queue} cannot be claimed, because Redis cannot read the key {key}: "
            "another program may have overwritten it. If so, delete it."
        ),
    ),
    "relayed": (logging.INFO, "{count:job was|jobs were} relayed late from an outbox."),
    "clock_set_ahead": (
        logging.WARNING,
        (
            "The clock of the {what} was set {seconds:.1f} s ahead. Jobs with ended leases are not "
            "taken over for {pause_seconds:.0f} s."
        ),
    ),
    "database_replaced": (
        logging.ERROR,
        (
            "The file {file} of the database {database} was deleted or replaced while it was open. "
            "What this process has written to it since then is lost."
        ),
    ),
    "jobs_rescued": (
        logging.WARNING,
        "{count:job was|jobs were} taken over from a cluster that is gone.",
    ),
    "cluster_buried": (
        logging.WARNING,
        "Cluster {name} on {host} is gone; {count:of its leases is|of its leases are} freed.",
    ),
    "places_freed": (
        logging.WARNING,
        "{count:place of a guard was|places of guards were} freed that no running job held.",
    ),
    "guards_put_off": (
        logging.WARNING,
        "Jobs with guards wait: {error}",
    ),
    "steps_gone_on": (
        logging.WARNING,
        (
            "{count:step of a workflow was|steps of workflows were} advanced late: the end of a "
            "job had not been noticed."
        ),
    ),
    "pruned": (logging.INFO, "{count:old result was|old results were} removed."),
    "upkeep_failed": (logging.ERROR, "Upkeep: {step} failed and will be retried: {error}"),
    "tick": (logging.DEBUG, "Schedule {name}: {outcome}, {seconds:.3f} s after it was due."),
    "ticks_missed": (logging.WARNING, "Schedule {name}: missed ticks are skipped."),
    "schedule_declared": (logging.INFO, "Schedule {name} is declared: {words}."),
    "schedule_past": (
        logging.WARNING,
        (
            "Schedule {name} does not fire: its time was past when it was declared. Run it by "
            "hand if its job has not run."
        ),
    ),
    "schedule_moved": (
        logging.WARNING,
        "Schedule {name}: its next moment is now {moment}, because {because}.",
    ),
    "schedule_dropped": (
        logging.INFO,
        "Schedule {name} is removed: neither code nor settings declare it any more.",
    ),
    "schedule_refused": (logging.ERROR, "Schedule {name} is not changed: {because}"),
    "schedules_not_declared": (
        logging.ERROR,
        "The schedules of code and settings are not updated, because an import failed. {error}",
    ),
    "schedule_failed": (
        logging.ERROR,
        "Schedule {name} could not be fired and will be retried: {because}",
    ),
    "schedule_resumed": (logging.INFO, "Schedule {name} is resumed: it can be read again."),
    "schedule_paused": (logging.ERROR, "Schedule {name} is paused: {because}"),
    "lock_lost": (
        logging.WARNING,
        "The lock {name!r} is lost: {because}. Another holder may take it while this one goes on.",
    ),
    "lock_not_renewed": (
        logging.WARNING,
        (
            "The lease of lock {name!r} could not be renewed ({error}); retrying until "
            "the lease ends in {seconds:.1f} s."
        ),
    ),
    "lock_not_released": (
        logging.WARNING,
        "The lock {name!r} was not released ({because}): it is free when its lease ends.",
    ),
    "metrics_served": (logging.INFO, "Metrics are served at http://{address}:{port}/metrics."),
    "reporter_not_loaded": (logging.ERROR, "A reporter is not loaded: {because}"),
    "reporter_failed": (
        logging.WARNING,
        (
            "The {hook} of the reporter {reporter!r} raised {error}. Jobs are not affected. "
            "Further errors of this hook are not logged in this process."
        ),
    ),
    "reports_dropped": (
        logging.WARNING,
        "The reporter {reporter!r} cannot keep up: {count:report was|reports were} dropped so far.",
    ),
    "webhooks_lost": (
        logging.ERROR,
        (
            "{count:event was|events were} lost so far, because the jobs that send webhooks could "
            "not be enqueued. The last error: {error}."
        ),
    ),
    "adopted": (
        logging.INFO,
        "The new pusher took over {count:lease|leases}, and released {released}.",
    ),
}


JOB_LINES = {"job_started", "job_ended"}
"""Events that are logged by ``stoker.jobs``. The logger of all others is ``stoker``."""
NAMES_THE_JOB = ("job_id", "task", "queue", "attempt")


def put_into_words(name: str, facts: dict[str, Any], **_: Any) -> None:
    """Log one event as a sentence."""
    level, sentence = SENTENCES[name]
    its_logger = job_lines if name in JOB_LINES else logger
    if not its_logger.isEnabledFor(level):
        return
    record = its_logger.makeRecord(
        its_logger.name, level, "", 0, _written(sentence, facts), (), None
    )
    record.stoker_event = name
    for fact in NAMES_THE_JOB:
        if fact in facts:
            setattr(
                record, f"stoker_{fact}", str(facts[fact]) if fact != "attempt" else facts[fact]
            )
    if name in JOB_LINES and "outcome" in facts:
        record.outcome, record.seconds = facts["outcome"], round(facts["seconds"], 3)
    record.exc_text = facts.get("traceback") or None
    its_logger.handle(record)


class _Count(int):
    """A number that is written with its noun: ``{count:job was|jobs were}``."""

    def __format__(self, words: str) -> str:
        one, bar, many = words.partition("|")
        return plural(self, one, many) if bar else format(int(self), words)


def _written(sentence: str, facts: dict[str, Any]) -> str:
    counts = {"count": _Count(facts["count"])} if "count" in facts else {}
    return sentence.format_map({**facts, **counts})


def install() -> None:
    """Log events, and add the current job to every log record.

    The attributes are ``stoker_job_id``, ``stoker_task``, ``stoker_queue`` and ``stoker_attempt``;
    they are empty outside of tasks.
    """
    event.connect(put_into_words, dispatch_uid="stoker.reporters.logs")
    make = logging.getLogRecordFactory()
    if getattr(make, "names_the_job", False):
        return

    def make_with_job(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        running = current.get()
        record.stoker_job_id = str(running.job_id) if running else ""
        record.stoker_task = running.task if running else ""
        record.stoker_queue = running.queue if running else ""
        record.stoker_attempt = running.attempt if running else ""
        return record

    make_with_job.names_the_job = True  # type: ignore[attr-defined] # a mark on our own function
    logging.setLogRecordFactory(make_with_job)
