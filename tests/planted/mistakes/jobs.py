"""Mistakes in jobs, tasks and dead letters."""

from tests.planted.mistake import Change, Mistake, Text
from tests.planted.operations import (
    drop,
    drop_keyword,
    drop_operand,
    lift,
    precede,
    repeat,
    replace,
)

MISTAKES = (
    Mistake(
        "a delay is added on the wall clock",
        [
            Change(
                "tasks.task:Task._counted_from_now",
                replace(
                    "project_moment(datetime.now(UTC) + timedelta(seconds=self.run_after_seconds))",
                    "project_moment(datetime.now(UTC)) + timedelta(seconds=self.run_after_seconds)",
                ),
            )
        ],
        "tests/integration/test_enqueue.py",
        "keeps_its_length",
    ),
    Mistake(
        "a job that was to be cancelled is repeated after its attempt failed",
        [
            Change(
                "jobs.record:Recorder._decide",
                drop("decided[place] = outcomes.Cancelled(reason, instead_of=outcome)"),
            )
        ],
        "tests/lifecycle/test_finish.py",
        "requested_cancellation",
    ),
    Mistake(
        "an unstarted job of a dead cluster that was to be cancelled is released",
        [
            Change(
                "cluster.scheduler.rescue:Rescue._free_at",
                replace("self._without_cancelled(unstarted, place)", "unstarted"),
            )
        ],
        "tests/cluster/test_upkeep.py",
        "unstarted_job_of_a_dead_cluster",
    ),
    Mistake(
        "a job that was to wait counts as late",
        [
            Change(
                "jobs.outcomes:_add_times",
                replace(
                    "max(enqueued_at, run_after) if run_after else enqueued_at",
                    "max(enqueued_at, run_after) if False else enqueued_at",
                ),
            )
        ],
        "tests/integration/test_metrics.py",
        "wait_of_deferred_job_counts_from_run_after",
    ),
    Mistake(
        "a lost worker's failure is reported by nobody",
        [
            Change(
                "jobs.failures:announce",
                drop_operand("outcomes.Crashed | outcomes.TimedOut", "outcomes.Crashed"),
            )
        ],
        "tests/lifecycle/test_failures.py",
        "lost",
    ),
    Mistake(
        "any task can be enqueued from outside",
        [Change("tasks.registry:expose", drop("if not task.exposed:\n    return"))],
        "tests/unit/test_exposure.py",
    ),
    Mistake(
        "each package is opened twice",
        [Change("jobs.execute:Executor._open", repeat("package = self._sealer.open(...)"))],
        "tests/test_benchmark_guard.py",
    ),
    Mistake(
        "ack and record are two transactions",
        [
            Change(
                "jobs.record:Recorder._record_inside",
                replace("self._transaction(batch)", "nullcontext()"),
            )
        ],
        "tests/lifecycle/test_finish.py",
        "not_acked",
    ),
    Mistake(
        "of jobs that are recorded together, a stale one is recorded with the others",
        [
            Change(
                "jobs.record:Recorder._record_inside",
                replace("batch.without(gone)", "batch.without(())"),
            )
        ],
        "tests/lifecycle/test_batch.py",
        "stale",
    ),
    Mistake(
        "the pusher is told of a record before the broker is",
        [
            Change(
                "cluster.monitor.monitor:Monitor._confirm", replace("len(self.unsettled)", "False")
            )
        ],
        "tests/unit/cluster/test_unsettled.py",
        "confirmed",
    ),
    Mistake(
        "the pusher is told of a record without the broker's answer",
        [Change("cluster.monitor.unsettled:Unsettled.end", drop("self._end()"))],
        "tests/unit/cluster/test_unsettled.py",
        "confirmed or settles",
    ),
    Mistake(
        "a settlement whose reply is lost is not repeated",
        [
            Change(
                "brokers.redis.broker:RedisBroker.begin_settle",
                drop("self.settle(over)"),
            )
        ],
        "tests/integration/test_redis_connections.py",
        "settlement",
    ),
    Mistake(
        "crashes are not counted",
        [
            Change(
                "jobs.outcomes:Batch.verdict",
                replace("isinstance(attempted.outcome, Crashed)", "False"),
            )
        ],
        "tests/lifecycle/test_finish.py",
        "moves",
    ),
    Mistake(
        "a snooze uses up an attempt",
        [Change("jobs.record:_return", replace("1", "0"))],
        "tests/lifecycle/test_finish.py",
        "moves",
    ),
    Mistake(
        "an atomic task is acked outside of its transaction",
        [Change("jobs.execute:run_and_record", lift("has_ended = _"))],
        "tests/lifecycle/test_atomic.py",
    ),
    Mistake(
        "an atomic task in a cluster is acked outside of its transaction",
        [Change("jobs.execute:run_and_record", lift("has_ended = _"))],
        "tests/story/test_atomic.py",
        database="postgres",
        needs_cluster=True,
    ),
    Mistake(
        "an atomic task with a stale lease is committed",
        [Change("jobs.record:Recorder.record_in_task", drop("if stale: ..."))],
        "tests/lifecycle/test_atomic.py",
    ),
    Mistake(
        "a job that waited outside before its task became atomic is acked before the commit",
        [
            Change(
                "jobs.record:Recorder.record_in_task",
                precede("return is_inside", "self._settle(*_leases_of(batch))"),
            )
        ],
        "tests/integration/test_made_atomic.py",
        "became",
        needs_redis=True,
    ),
    Mistake(
        "a job that waited outside before its task became atomic is done by two workers",
        [
            Change(
                "jobs.record:Recorder.record_in_task",
                replace("self._check(doubtful) or _", "self._record_rest(batch, ()) and set()"),
            )
        ],
        "tests/integration/test_made_atomic.py",
        "made_atomic_later",
        needs_redis=True,
    ),
    Mistake(
        "the end of a job at Redis is dropped because its attempt had failed before",
        [
            Change(
                "jobs.record:Recorder._record_rest",
                replace("(failed & over) - ended - refused", "set()"),
            )
        ],
        "tests/integration/test_fronted.py",
        "may_not_run_again or repeats_a_failed",
        needs_redis=True,
    ),
    Mistake(
        "a success with a stale lease is recorded after the job was rescued from Redis",
        [Change("jobs.record:Recorder._record_rest", replace("self._check(_)", "set()"))],
        "tests/integration/test_fronted.py",
        "concurrent_success_and_rescue",
        needs_redis=True,
    ),
    Mistake(
        "an edited argument chooses the function that a Django Q job calls",
        [
            Change(
                "contrib.django_q.calls:_function_of_job",
                drop("if running is not None and running.task != path: ..."),
            )
        ],
        "tests/contrib/django_q/test_editing.py",
    ),
    Mistake(
        "a job that has ended is released if its worker dies before the ack",
        [Change("jobs.record:Recorder._record_valid", drop("batch.decide(again)"))],
        "tests/integration/test_made_atomic.py",
        "dies_before_the_ack",
        needs_redis=True,
    ),
    Mistake(
        "the success of a job that waited outside before its task became atomic is not counted",
        [Change("jobs.record:Recorder._record_valid", drop("self._count(_)"))],
        "tests/integration/test_made_atomic.py",
        "counted",
        needs_redis=True,
    ),
    Mistake(
        "the row of a job is pruned while a broker may lease the job",
        [
            Change(
                "cluster.scheduler.scheduler:Upkeep.prune",
                replace("self._broker.broker is None", "True"),
            )
        ],
        "tests/integration/test_made_atomic.py",
        "pruned",
        needs_redis=True,
    ),
    Mistake(
        "an atomic job fails if the broker does not answer",
        [
            Change(
                "jobs.execute:_record",
                replace("Snooze(UNREACHABLE_DELAY_SECONDS, str(error))", "error"),
            )
        ],
        "tests/integration/test_made_atomic.py",
        "snoozed",
        needs_redis=True,
    ),
    Mistake(
        "the time limit of an atomic task goes on while it is recorded",
        [
            Change(
                "jobs.execute:Executor._complete",
                replace(
                    "return run_and_record(...)",
                    "with self._limit(9.0):\n    return run_and_record("
                    "self.settings, lambda: self._try(opened), attempted)",
                ),
            )
        ],
        "tests/lifecycle/test_atomic.py",
    ),
    Mistake(
        "a job that was blocked while it was held is never called",
        [Change("jobs.enqueue:_Intake._commit", drop("look_after(self._alias, self._neglected)"))],
        "tests/guards/test_unique_transactions.py",
        "is_blocked",
        database="postgres",
    ),
    Mistake(
        "a replaced job keeps the package of another id",
        [Change("jobs.intake:_again", drop("data = sealer.seal(package)"))],
        "tests/guards/test_unique.py",
        "options_of_the_new_call",
    ),
    Mistake(
        "who was cancelled before it began is not told",
        [Change("jobs.execute:Executor._call", drop("running.interruption.check()"))],
        "tests/lifecycle/test_atomic.py",
        "before_it_began",
    ),
    Mistake(
        "a failure whose ack was repeated counts twice",
        [
            Change(
                "jobs.record:Recorder.record",
                replace("self._recorded(batch)", "set()"),
            )
        ],
        "tests/integration/test_fronted.py",
        "outcome_recorded_twice_counts_once",
        needs_redis=True,
    ),
    Mistake(
        "a requeue that is taken back lets a halted sequence go on",
        [
            Change(
                "dead_letters.undoing:_Undo._withdraw",
                drop("halt_again(self._alias, _, failed)"),
            )
        ],
        "tests/integration/test_undo_requeue.py",
        "sequence",
    ),
    Mistake(
        "a job that has been tried is withdrawn with its requeue",
        [
            Change(
                "dead_letters.undoing:_Undo._withdraw",
                replace("[job_id for job_id in letters if job_id not in tried]", "list(letters)"),
            )
        ],
        "tests/integration/test_undo_requeue.py",
        "job_waiting_for_retry_cannot_be_undone",
    ),
    Mistake(
        "a requeue loses the priority",
        [Change("dead_letters.requeueing:_Requeue._task", replace("seen.priority", "0"))],
        "tests/integration/test_dead_letters.py",
        "requeued_job_keeps_its_options",
    ),
    Mistake(
        "a requeue loses the queue",
        [
            Change(
                "dead_letters.requeueing:_Requeue._task",
                drop_operand("self._wish.queue or seen.queue", "seen.queue"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "requeued_job_keeps_its_options",
    ),
    Mistake(
        "a requeue leaves the notes with the failed job",
        [
            Change(
                "dead_letters.requeueing:_Requeue._send",
                drop("Note.objects.using(self._alias).hand_on(jobs)"),
            )
        ],
        "tests/integration/test_notes.py",
        "requeued_dead_letter_starts_from_the_checkpoint",
    ),
    Mistake(
        "a requeue keeps the unique key with the failed job",
        [
            Change(
                "dead_letters.requeueing:_Requeue._send",
                drop("UniqueKey.objects.using(self._alias).release(...)"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "unique_period_does_not_block_requeue",
    ),
    Mistake(
        "a requeue ignores the delay asked for",
        [
            Change(
                "dead_letters.requeueing:_Requeue._task",
                drop("changes['run_after'] = self._wish.run_after"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "requeue_accepts_other_arguments_queue_and_run_after",
    ),
    Mistake(
        "the requeue of a policy goes on for ever",
        [
            Change(
                "dead_letters.requeueing:requeue_due",
                drop_operand("policy is not None and _", "policy.allows(letter.requeued_count)"),
            )
        ],
        "tests/integration/test_automatic_requeue.py",
        "cool_down_restarts_with_each_failure_and_requeues_are_limited",
    ),
    Mistake(
        "a refused automatic requeue is tried again at once",
        [
            Change(
                "dead_letters.requeueing:requeue_due",
                drop("DeadLetter.objects.using(_).put_off(letter)"),
            )
        ],
        "tests/integration/test_automatic_requeue.py",
        "cool_down_restarts_with_each_failure_and_requeues_are_limited",
    ),
    Mistake(
        "the search of dead letters ignores the task",
        [Change("dead_letters.search:_condition", drop("if wanted.task:\n    ..."))],
        "tests/integration/test_dead_letters.py",
        "bulk_requeue_and_discard_apply_filters_and_limit",
    ),
    Mistake(
        "the search of dead letters ignores the queue",
        [Text("dead_letters/search.py", '        "queue": wanted.queue,\n', "")],
        "tests/integration/test_dead_letters.py",
        "each_filter_finds_the_matching_dead_letters",
    ),
    Mistake(
        "the search of dead letters ignores the reason",
        [
            Text(
                "dead_letters/search.py",
                '        "reason": wanted.reason and DeadLetter.Reason(wanted.reason),\n',
                "",
            )
        ],
        "tests/integration/test_dead_letters.py",
        "each_filter_finds_the_matching_dead_letters",
    ),
    Mistake(
        "the search of dead letters ignores failed_after",
        [Text("dead_letters/search.py", '        "failed_at__gte": wanted.failed_after,\n', "")],
        "tests/integration/test_dead_letters.py",
        "each_filter_finds_the_matching_dead_letters",
    ),
    Mistake(
        "the search of dead letters ignores failed_before",
        [Text("dead_letters/search.py", '        "failed_at__lt": wanted.failed_before,\n', "")],
        "tests/integration/test_dead_letters.py",
        "each_filter_finds_the_matching_dead_letters",
    ),
    Mistake(
        "the search of dead letters ignores the key",
        [Text("dead_letters/search.py", '        "key__contains": key,\n', "")],
        "tests/integration/test_dead_letters.py",
        "unstorable_characters_are_escaped_and_searchable",
    ),
    Mistake(
        "the search of dead letters ignores the text",
        [Change("dead_letters.search:_condition", drop("condition &= found"))],
        "tests/integration/test_dead_letters.py",
        "unstorable_characters_are_escaped_and_searchable",
    ),
    Mistake(
        "a bulk action takes requeued dead letters, too",
        [
            Change(
                "dead_letters.closing:each",
                replace("replace(wanted, state=DeadLetter.State.OPEN)", "wanted"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "requeued_dead_letter_is_not_discarded",
    ),
    Mistake(
        "a bulk action ignores its limit",
        [
            Change(
                "dead_letters.closing:each",
                replace("list(_[:limit])", "list(rows.values_list('pk', flat=True))"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "bulk_requeue_and_discard_apply_filters_and_limit",
    ),
    Mistake(
        "a dry run changes something",
        [Change("dead_letters.closing:each", drop("if dry_run:\n    ..."))],
        "tests/integration/test_dead_letters.py",
        "bulk_requeue_and_discard_apply_filters_and_limit",
    ),
    Mistake(
        "a purge ignores its moment",
        [
            Change(
                "dead_letters.closing:past",
                replace("letters.filter(closed_at__lt=before)", "letters"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "purge_deletes_old_closed_dead_letters_with_their_history",
    ),
    Mistake(
        "a job is tried once too often",
        [
            Change(
                "jobs.retries:is_out_of_attempts",
                replace("attempt >= options.max_attempts", "attempt > options.max_attempts"),
            )
        ],
        "tests/unit/lifecycle/test_retries.py",
        "error_leads_to_a_retry_or_a_failure",
    ),
    Mistake(
        "give_up_on is ignored",
        [
            Change(
                "jobs.retries:_is_listed",
                drop("if isinstance(error, give_up_on):\n    ..."),
            )
        ],
        "tests/unit/lifecycle/test_retries.py",
        "error_leads_to_a_retry_or_a_failure",
    ),
    Mistake(
        "retry_on is ignored",
        [
            Change(
                "jobs.retries:_is_listed",
                drop_operand("not retry_on or _", "isinstance(error, retry_on)"),
            )
        ],
        "tests/unit/lifecycle/test_retries.py",
        "error_leads_to_a_retry_or_a_failure",
    ),
    Mistake(
        "the delay of a Retry is ignored",
        [
            Change(
                "jobs.retries:_delay",
                drop("if isinstance(error, Retry) and error.delay_seconds is not None:\n    ..."),
            )
        ],
        "tests/unit/lifecycle/test_retries.py",
        "error_leads_to_a_retry_or_a_failure",
    ),
    Mistake(
        "the delay after crashes grows without end",
        [
            Change(
                "jobs.retries:crash_delay_seconds",
                replace("min(CRASH_DELAY_CAP_SECONDS, _)", "float(2 ** min(times, 20))"),
            )
        ],
        "tests/unit/lifecycle/test_retries.py",
        "delay_after_crashes_grows_up_to_a_cap",
    ),
    Mistake(
        "a package of another cluster is accepted",
        [
            Change(
                "jobs.envelope:_Key.__init__",
                replace("f'stoker.package:{cluster}'", "'stoker.package'"),
            )
        ],
        "tests/unit/test_package.py",
        "open_without_arguments_unpickles_nothing",
    ),
    Mistake(
        "a pickled package is opened by a cluster for JSON",
        [Change("jobs.package:Sealer._refuse_pickled", replace("not self._pickles", "False"))],
        "tests/unit/test_package.py",
        "json_serializer_unpickles_nothing",
    ),
    Mistake(
        "a package of any size is accepted",
        [Change("jobs.package:Sealer.close", replace("len(data) > self._max_bytes", "False"))],
        "tests/unit/test_package.py",
        "size_limit_counts_the_whole_package",
    ),
    Mistake(
        "a newer package is read as far as it is known",
        [Change("jobs.envelope:_read_header", replace("version > kind.newest", "False"))],
        "tests/unit/test_package.py",
        "newer_version_is_reported",
    ),
    Mistake(
        "a running job is not asked to end",
        [Change("jobs.cancel:_cancel_anywhere", drop("Cancellation.objects.using(_).ask(...)"))],
        "tests/integration/test_results.py",
        "running_job_is_asked_to_stop",
    ),
    Mistake(
        "a job that is released while its cancellation is requested goes on waiting",
        [Change("jobs.cancel:_cancel_anywhere", drop("after_commit(...)"))],
        "tests/lifecycle/test_cancelled_before_start.py",
        "released_before_its_request_is_seen",
    ),
    Mistake(
        "a cluster releases a job whose cancellation was requested",
        [
            Change(
                "cluster.pusher.requests:Cancels.end_unstarted",
                replace("one.delivery.job_id in reasons and _is_known(one)", "False"),
            )
        ],
        "tests/lifecycle/test_cancelled_before_start.py",
        "released_job_whose_cancellation_was_requested",
    ),
    Mistake(
        "a rollback brings no job back to the outbox of another database",
        [Change("jobs.cancel:_cancel_outgoing", replace("is_in_transaction(alias)", "False"))],
        "tests/integration/test_cancel_in_outbox.py",
        "queues_database_is_rolled_back and store",
        database="two_databases",
    ),
    Mistake(
        "a cancelled job goes on waiting in the broker",
        [Change("jobs.cancel:_cancel_waiting", replace("broker.withdraw([unstored.pk])", "True"))],
        "tests/integration/test_results.py",
        "job_waiting_for_retry_is_cancelled or ready_job_is_cancelled_at_once",
    ),
    Mistake(
        "jobs of a cleared queue are lost if the process dies before it has recorded them",
        [Change("jobs.cancel:cancel_those_outside", drop("_ask_with_rows(alias, jobs, reason)"))],
        "tests/integration/test_clear_at_broker.py",
        "dies",
        needs_redis=True,
    ),
    Mistake(
        "a job that is cancelled at its broker loses its arguments",
        [
            Change(
                "jobs.cancel:_full_rows",
                drop("job.package, job.run_after = row.package, row.run_after"),
            )
        ],
        "tests/integration/test_clear_at_broker.py",
        "cancelled_job_is_kept_with_its_call",
        needs_redis=True,
    ),
    Mistake(
        "clearing a queue at its broker ignores the limit",
        [Change("queues:clear", replace("job_ids[: matched - done]", "job_ids"))],
        "tests/integration/test_clear_at_broker.py",
        "stops_at_its_limit",
        needs_redis=True,
    ),
    Mistake(
        "a request to cancel is forgotten while the job runs",
        [
            Change(
                "jobs.cancel:_sweep",
                replace(
                    "delete_by_key(Cancellation.objects.using(alias), gone)",
                    "delete_by_key(Cancellation.objects.using(alias), reasons)",
                ),
            )
        ],
        "tests/integration/test_results.py",
        "request_is_kept_until_its_job_has_ended",
    ),
    Mistake(
        "pruning deletes attempts that a dead letter shows",
        [
            Change(
                "dead_letters.search:told_by_dead_letters",
                replace(
                    "DeadLetter.objects.using(alias).filter(job_id__in=job_ids)",
                    "DeadLetter.objects.using(alias).none()",
                ),
            )
        ],
        "tests/integration/test_automatic_requeue.py",
        "attempts_are_kept_as_long_as_their_dead_letter",
    ),
    Mistake(
        "pruning deletes attempts that a history of requeues shows",
        [
            Change(
                "dead_letters.search:told_by_dead_letters",
                replace(
                    "Requeue.objects.using(alias).filter(from_job_id__in=job_ids)",
                    "Requeue.objects.using(alias).none()",
                ),
            )
        ],
        "tests/integration/test_automatic_requeue.py",
        "attempts_are_kept_as_long_as_their_dead_letter",
    ),
    Mistake(
        "a discard wakes no cluster",
        [Change("dead_letters.closing:_call", drop("after_commit(...)"))],
        "tests/integration/test_dead_letters.py",
        "discard_wakes_clusters_of_halted_sequence_after_commit",
    ),
    Mistake(
        "a discard wakes clusters before the commit",
        [
            Change(
                "dead_letters.closing:_call",
                replace(
                    "after_commit(settings.database, lambda: broker.wake_up(queues))",
                    "broker.wake_up(queues)",
                ),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "discard_wakes_clusters_of_halted_sequence_after_commit",
    ),
    Mistake(
        "a requeue wakes no cluster",
        [Change("dead_letters.requeueing:_Requeue._commit", drop("if self._queues:\n    ..."))],
        "tests/integration/test_dead_letters.py",
        "requeue_wakes_clusters_after_commit",
    ),
    Mistake(
        "a requeue wakes clusters before the commit",
        [
            Change(
                "dead_letters.requeueing:_Requeue.run",
                replace("after_commit(self._alias, self._commit)", "self._commit()"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "requeue_wakes_clusters_after_commit",
    ),
    Mistake(
        "a requeue keeps the expiry of the job that failed",
        [
            Change(
                "dead_letters.requeueing:_Requeue._newcomer",
                drop_keyword("replace(options, ...)", "expires_at"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "requeued_job_expires_when_its_task_says",
    ),
    Mistake(
        "a requeue loses the metadata",
        [
            Change(
                "dead_letters.requeueing:_Requeue._newcomer",
                drop_keyword("replace(fresh.package, ...)", "metadata"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "requeued_job_keeps_its_metadata",
    ),
    Mistake(
        "the search of dead letters ignores the fingerprint",
        [Text("dead_letters/search.py", '        "fingerprint": wanted.fingerprint,\n', "")],
        "tests/integration/test_dead_letters.py",
        "each_filter_finds_the_matching_dead_letters",
    ),
    Mistake(
        "a purge takes open dead letters that failed lately",
        [
            Change(
                "dead_letters.closing:past",
                replace("letters.filter(failed_at__lt=before)", "letters"),
            )
        ],
        "tests/integration/test_dead_letters.py",
        "purge_keeps_recent_open_dead_letters",
    ),
    Mistake(
        "a purge deletes attempts of jobs that are kept",
        [Change("dead_letters.closing:_forget_history", replace("tried - kept", "tried"))],
        "tests/integration/test_dead_letters.py",
        "purge_keeps_attempts_of_jobs_that_are_kept",
    ),
    Mistake(
        "a cancellation ends because two other transactions block each other",
        [
            Change(
                "jobs.cancel:cancel_waiting",
                replace("repeat_if_aborted(alias, cancel_once)", "cancel_once()"),
            )
        ],
        "tests/guards/test_unique_transactions.py",
        "victim_of_a_deadlock_of_others",
        database="postgres",
    ),
    Mistake(
        "upkeep forgets the request for a cancelled job that a cluster has just claimed",
        [
            Change(
                "jobs.cancel:_sweep",
                replace("job_id not in places or job_id in withdrawn", "True"),
            )
        ],
        "tests/integration/test_broker_outage.py",
        "request_is_kept_for_a_cancelled_job",
        needs_redis=True,
    ),
    Mistake(
        "an outcome is lost if a cancellation deletes the row meanwhile",
        [Change("jobs.record:Recorder._known", drop("return self._known(batch, rows)"))],
        "tests/integration/test_clear_at_broker.py",
        "outcome_is_recorded_though_its_request_row",
        database="postgres",
        needs_redis=True,
    ),
    Mistake(
        "the job of a schedule without overlaps waits at a broker that does not know its end",
        [
            Change(
                "schedules.fire:marked",
                replace("row.overlap != Schedule.Overlap.ALLOW", "False"),
            )
        ],
        "tests/integration/test_schedules.py",
        "overlap_is_noticed_with_a_broker",
        needs_redis=True,
    ),
    Mistake(
        "requests cannot be read if tables and connection have different collations",
        [Change("cluster.pusher.requests:_text", replace("Cast(column, TextField())", "column"))],
        "tests/lifecycle/test_operator_requests.py",
        database="mariadb",
    ),
    Mistake(
        "an atomic task on MariaDB decides about guards by old rows",
        [
            Change(
                "store.engines.mysql:MySQL.atomic_task",
                replace("self.deciding()", "super().atomic_task()"),
            )
        ],
        "tests/lifecycle/test_atomic.py",
        "reads_repeatably",
        database="mariadb",
    ),
)
