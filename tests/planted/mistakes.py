"""The mistakes, such as somebody might make, and the tests that have to notice."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """In this file, this becomes that."""

    path: str
    right: str
    wrong: str
    times: int = 1
    """How often it stands there."""


@dataclass(frozen=True)
class Mistake:
    """What somebody might get wrong."""

    name: str
    changes: tuple[Change, ...]
    """More than one where each place alone makes up for the other."""
    tests: tuple[str, ...]
    database: str = "sqlite"
    needs_cluster: bool = False
    """The tests start one, which takes its time."""
    needs_redis: bool = False


MISTAKES = (
    Mistake(
        "a monitor that stops forgets what it has counted",
        (
            Change(
                "cluster/monitor.py",
                "        self.patience.call(self.tallies.write)\n        self.broker.close()",
                "        self.broker.close()",
            ),
        ),
        ("tests/cluster/test_metrics.py",),
        needs_cluster=True,
    ),
    Mistake(
        "what is folded is gone",
        (Change("models/metrics.py", "        rows.bulk_create(merged)\n", ""),),
        ("tests/integration/test_metrics.py", "-k", "grows_old"),
    ),
    Mistake(
        "a job that was to wait counts as late",
        (Change("jobs/tallies.py", "if run_after else enqueued_at", "if False else enqueued_at"),),
        ("tests/integration/test_metrics.py", "-k", "not_late"),
    ),
    Mistake(
        "nobody is told that the queue is paused",
        (Change("inspect/why/waiting.py", "        or _paused(asked)\n", ""),),
        ("tests/integration/test_why.py", "-k", "queue_is_paused"),
    ),
    Mistake(
        "a loop that hangs passes for one that turns",
        (
            Change(
                "management/health.py", "if ages[slowest] > max_silence_seconds:", "if not ages:"
            ),
        ),
        ("tests/cluster/test_service.py", "-k", "turn_is_enough"),
    ),
    Mistake(
        "the watchdog is fed though a loop hangs",
        (Change("cluster/sentinel.py", " and self._watch.all_turn()", ""),),
        ("tests/cluster/test_service.py", "-k", "no_watchdog"),
    ),
    Mistake(
        "a lost worker's failure is reported by nobody",
        (
            Change(
                "jobs/announce.py",
                "isinstance(verdict.attempted.outcome, outcomes.Crashed | outcomes.TimedOut)",
                "isinstance(verdict.attempted.outcome, outcomes.TimedOut)",
            ),
        ),
        ("tests/lifecycle/test_failures.py", "-k", "lost"),
    ),
    Mistake(
        "counters for Prometheus go back when old rows are deleted",
        (Change("models/metrics.py", "rows.add_to_totals(seen)", "pass"),),
        ("tests/integration/test_metrics.py", "-k", "never_become_less"),
    ),
    Mistake(
        "a reporter is told secrets",
        (
            Change(
                "reporters/facts.py", "cleanse_setting(name, value)", 'cleanse_setting("", value)'
            ),
        ),
        ("tests/unit/reporters/test_facts.py",),
    ),
    Mistake(
        "metrics are told to anybody",
        (
            Change("reporters/prometheus.py", "return bool(given) and any(", "return any("),
            Change("reporters/prometheus.py", "reporter.token and constant", "constant"),
        ),
        ("tests/reporters/test_prometheus.py", "-k", "no_token_opens_it"),
    ),
    Mistake(
        "MongoDB: whoever knows a job may end it",
        (Change("brokers/mongodb/documents.py", '"lease": lease_id, "state"', '"state"'),),
        ("tests/conformance/test_leases.py", "-k", "mongodb and late_owner"),
    ),
    Mistake(
        "MongoDB: two claims take the same jobs",
        (
            Change(
                "brokers/mongodb/broker.py",
                '{"_id": {"$in": ids}, **still}',
                '{"_id": {"$in": ids}}',
            ),
        ),
        ("tests/conformance/test_concurrency.py", "-k", "mongodb and threads_claim"),
    ),
    Mistake(
        "MongoDB: a repeated relay of what has ended is a second job",
        (Change("brokers/mongodb/broker.py", ' | {"relayed": True}', ""),),
        ("tests/integration/test_mongodb.py", "-k", "repeated_after_the_end"),
    ),
    Mistake(
        "carried: what came before is a job again",
        (
            Change(
                "brokers/carried.py",
                "        fresh = relayed.note(job_ids)\n",
                "        fresh = set(job_ids)\n",
            ),
        ),
        ("tests/integration/test_carried.py", "-k", "after_its_end"),
    ),
    Mistake(
        "carried: a message is dropped before the store has its job",
        (
            Change(
                "brokers/carried.py",
                "        try:\n            self._bring_in(",
                "        self.transport.drop(self._in_hand)\n"
                "        try:\n            self._bring_in(",
            ),
        ),
        ("tests/integration/test_carried.py", "-k", "in_hand"),
    ),
    Mistake(
        "carried: what the store does not take is not held",
        (Change("brokers/carried.py", "        self._hold()\n", ""),),
        ("tests/integration/test_carried.py", "-k", "kept_in_hand"),
    ),
    Mistake(
        "carried: what is full holds up what comes",
        (Change("brokers/carried.py", " or self._taken >= AHEAD", ""),),
        ("tests/integration/test_carried.py", "-k", "backlog"),
    ),
    Mistake(
        "carried: a message that the store refuses stops the others",
        (Change("brokers/transport.py", "if _can_be_stored(message):", "if message:"),),
        ("tests/integration/test_carried.py", "-k", "refuse_for_ever"),
    ),
    Mistake(
        "carried: what nobody takes stays with the lookout",
        (
            Change(
                "brokers/carried.py",
                "            self._transport.give_back(parcels)\n",
                "            pass\n",
            ),
        ),
        ("tests/integration/test_carried.py", "-k", "given_back"),
    ),
    Mistake(
        "IronMQ: a queue forgets its messages after a week",
        (
            Change(
                "brokers/ironmq.py",
                '"message_expiration": KEPT_SECONDS',
                '"message_expiration": 604_800',
            ),
        ),
        ("tests/integration/test_ironmq.py", "-k", "keeps_what_it_is_given"),
    ),
    Mistake(
        "IronMQ: the reservation before a touch goes on to count",
        (Change("brokers/ironmq.py", 'answer.get("reservation_id", known)', "known"),),
        ("tests/integration/test_ironmq.py", "-k", "new_reservation"),
    ),
    Mistake(
        "Disque: a job is on one node only",
        (
            Change(
                "brokers/disque/transport.py",
                '["REPLICATE", self._nodes.copies]',
                '["REPLICATE", 1]',
            ),
        ),
        ("tests/integration/test_disque.py", "-k", "takes_no_job_with_it"),
    ),
    Mistake(
        "Redis: a relay of long ago is accepted",
        (
            Change(
                "brokers/redis/broker.py",
                "(remember_seconds, until)",
                "(remember_seconds, 0.0)",
            ),
        ),
        ("tests/integration/test_redis_server.py", "-k", "stopped_meanwhile"),
        needs_redis=True,
    ),
    Mistake(
        "a permission of the API is not asked for",
        (Change("api/access.py", "if not user.has_perm(permission):", "if not permission:"),),
        ("tests/api/test_permissions.py", "-k", "gets_403"),
        database="postgres",
    ),
    Mistake(
        "a session changes something without the CSRF token",
        (Change("api/access.py", "if check_csrf(request) is not None:", "if user.is_anonymous:"),),
        ("tests/api/test_permissions.py", "-k", "csrf"),
        database="postgres",
    ),
    Mistake(
        "any task can be enqueued from outside",
        (Change("tasks/registry.py", "    if not task.exposed:\n        return\n", ""),),
        ("tests/unit/test_exposure.py",),
    ),
    Mistake(
        "a cluster that was asked to stop can be asked to go on",
        (Change("models/cluster.py", ".exclude(request=Cluster.Request.STOP)", ""),),
        ("tests/api/test_operating.py", "-k", "clusters_are_asked"),
        database="postgres",
    ),
    Mistake(
        "a new pusher hurries a cluster that was asked to stop",
        (
            Change(
                "cluster/sentinel.py",
                'if self.stop_at is None:\n            self.stop("asked through the store")',
                'self.stop("asked through the store")',
            ),
        ),
        ("tests/cluster/test_requests.py", "-k", "does_not_hurry"),
        needs_cluster=True,
    ),
    Mistake(
        "who finds nothing behind the marks believes that there is nothing",
        (
            Change(
                "brokers/orm/claim.py",
                "if self.are_good() and ((found := claim()) or is_more()):",
                "if self.are_good() and ((found := claim()) or True):",
            ),
        ),
        ("tests/integration/test_watermarks.py", "-k", "late or locked or random"),
        database="postgres",
    ),
    Mistake(
        "what falls due is left behind a mark",
        (Change("brokers/orm/broker.py", "        self._marks.lower(promoted)\n", ""),),
        ("tests/integration/test_watermarks.py", "-k", "falls_due"),
        database="postgres",
    ),
    Mistake(
        "a claim begins at the start each time",
        (Change("brokers/orm/claim.py", "= row[JOB_ID]", "= FIRST_ID"),),
        ("tests/integration/test_watermarks.py", "-k", "walk"),
        database="postgres",
    ),
    Mistake(
        "a deferred job that comes late is left behind a mark",
        (Change("brokers/orm/broker.py", "has_looked = not self._marks.due_from_us", "pass"),),
        ("tests/integration/test_watermarks.py", "-k", "deferred"),
        database="postgres",
    ),
    Mistake(
        "each package is opened twice",
        (
            Change(
                "jobs/execute.py",
                "package = self._sealer.open(delivery.package)\n",
                "package = self._sealer.open(delivery.package)\n"
                + 12 * " "
                + "package = self._sealer.open(delivery.package)\n",
            ),
        ),
        ("tests/test_benchmark_guard.py",),
    ),
    Mistake(
        "a claim takes from paused queues",
        (
            Change(
                "brokers/orm/broker.py",
                "[name for name in named if name not in passed_over]",
                "[*named]",
            ),
        ),
        ("tests/conformance/test_claim.py", "-k", "passed_over"),
    ),
    Mistake(
        "what was fetched of a paused queue is handed out again",
        (
            Change(
                "cluster/pusher/flights.py",
                "if not flight.delivery.package or flight.delivery.queue in self.paused:",
                "if not flight.delivery.package:",
            ),
        ),
        ("tests/unit/cluster/test_pauses.py",),
    ),
    Mistake(
        "the doctor makes lost jobs ready twice",
        (
            Change(
                "inspect/doctor/looks.py",
                "lost = [alive[one] for one in alive.keys() - places_of(self.alias, alive).keys()]",
                "lost = [*alive.values()]",
            ),
        ),
        ("tests/integration/test_doctor.py", "-k", "looked_at_once_more"),
    ),
    Mistake(
        "ack does not ask for the lease id",
        (
            Change(
                "store/sql/claimed_ack.sql",
                "lease_id = ((SELECT %(leases)s::jsonb) ->> encode",
                "0 < ((SELECT %(leases)s::jsonb) ->> encode",
            ),
        ),
        (
            "tests/lifecycle/test_finish.py",
            "-k",
            "stale",
        ),
        "postgres",
    ),
    Mistake(
        "release does not ask for the lease id",
        (
            Change(
                "store/sql/claimed_give_back.sql",
                "lease_id = ((SELECT %(returns)s::jsonb) -> encode",
                "0 < ((SELECT %(returns)s::jsonb) -> encode",
            ),
        ),
        (
            "tests/lifecycle/test_finish.py",
            "-k",
            "stale",
        ),
        "postgres",
    ),
    Mistake(
        "rescue takes leases that are not over",
        (
            Change(
                "store/sql/claimed_claim_expired.sql",
                "leased_until_us < (extract",
                "leased_until_us <> (extract",
                times=2,
            ),
        ),
        ("tests/conformance/test_leases.py",),
        "postgres",
    ),
    Mistake(
        "a claim does not count the attempt",
        (
            Change(
                "store/sql/claim.sql",
                "queue, rank, attempts + 1, crashes",
                "queue, rank, attempts, crashes",
            ),
        ),
        ("tests/conformance/test_claim.py",),
        "postgres",
    ),
    Mistake(
        "a claim takes jobs of paused queues",
        (
            Change(
                "store/sql/claim.sql",
                "WHERE queue <> ALL (ARRAY(SELECT queue FROM stoker_pausedqueue))",
                "WHERE queue <> ''",
            ),
        ),
        ("tests/conformance/test_claim.py", "-k", "sees_pauses"),
        "postgres",
    ),
    Mistake(
        "a plan that is kept reads a whole table",
        (Change("store/prepared.py", "-c enable_seqscan=off ", ""),),
        ("tests/conformance/test_plans.py", "-k", "kept"),
        "postgres",
    ),
    Mistake(
        "leases are never extended",
        (Change("cluster/pusher/claims.py", "        if old:\n", "        if not old:\n"),),
        ("tests/unit/cluster/test_leases.py",),
    ),
    Mistake(
        "the fence counts from after the call",
        (
            Change(
                "cluster/pusher/claims.py",
                "                flight.leased_at = now\n",
                "                flight.leased_at = time.monotonic()\n",
            ),
        ),
        ("tests/unit/cluster/test_leases.py",),
    ),
    Mistake(
        "nobody heeds the fence",
        (Change("cluster/watch.py", "and bool(fence_ns) and", "and not fence_ns and"),),
        ("tests/unit/cluster/test_watch.py",),
    ),
    Mistake(
        "what is given back keeps its attempt",
        (
            Change(
                "cluster/pusher/claims.py",
                "attempts=flight.delivery.attempt - 1",
                "attempts=flight.delivery.attempt",
            ),
        ),
        (
            "tests/cluster/test_stop.py",
            "-k",
            "interrupted and deadline",
        ),
        needs_cluster=True,
    ),
    Mistake(
        "ack and record are two transactions",
        (
            Change(
                "jobs/record.py",
                "    with transaction_for(settings.database, over):\n",
                "    if True:\n",
            ),
        ),
        (
            "tests/lifecycle/test_finish.py",
            "-k",
            "not_acked",
        ),
    ),
    Mistake(
        "of jobs that succeed together, ack and record are two transactions",
        (
            Change(
                "jobs/record.py",
                "    with transaction.atomic(using=alias):\n",
                "    if True:\n",
            ),
        ),
        ("tests/lifecycle/test_successes.py", "-k", "not_acked"),
    ),
    Mistake(
        "of jobs that succeed together, a stale one is recorded with the others",
        (Change("models/claimed.py", "if len(rows) < len(job_ids):", "if not rows:"),),
        ("tests/lifecycle/test_successes.py", "-k", "stale"),
    ),
    Mistake(
        "crashes are not counted",
        (Change("jobs/record.py", "        crashes += 1\n", "        crashes += 0\n"),),
        (
            "tests/lifecycle/test_finish.py",
            "-k",
            "moves",
        ),
    ),
    Mistake(
        "a snooze uses up an attempt",
        (Change("jobs/record.py", "        attempts -= 1\n", "        attempts -= 0\n"),),
        (
            "tests/lifecycle/test_finish.py",
            "-k",
            "moves",
        ),
    ),
    Mistake(
        "a recall does not look what was started",
        (
            Change(
                "cluster/pusher/adoption.py",
                "return not is_there or number <= last_started",
                "return not is_there",
            ),
        ),
        ("tests/unit/cluster/test_roster.py",),
    ),
    Mistake(
        "a worker does not look whether a job was recalled",
        (
            Change(
                "cluster/worker/worker.py",
                "place.RECALLED_THROUGH] >= number",
                "place.RECALLED_THROUGH] < 0",
            ),
        ),
        (
            "tests/cluster/test_stop.py",
            "-k",
            "prefetched",
        ),
        needs_cluster=True,
    ),
    Mistake(
        "a worker takes jobs from the line of a dead pusher",
        (
            Change(
                "cluster/worker/workload.py",
                "elif line is self._line and not self.is_leaving:",
                "elif not self.is_leaving:",
            ),
        ),
        ("tests/unit/cluster/test_workload.py",),
    ),
    Mistake(
        "a worker forgets what it has reported before it is recorded",
        (
            Change(
                "cluster/worker/workload.py",
                "            self._reports[number] = report\n",
                "            self._jobs.pop(number, None)\n",
            ),
        ),
        ("tests/unit/cluster/test_workload.py",),
    ),
    Mistake(
        "a new pusher gives back what it has not asked about",
        (
            Change(
                "cluster/pusher/adoption.py",
                "return self._expected is None or bool(self._expected)",
                "return self._expected is None",
            ),
        ),
        ("tests/unit/cluster/test_adoption.py",),
    ),
    Mistake(
        "an old death is held against a new lease",
        (
            Change(
                "cluster/pusher/adoption.py",
                "lease_mark(orphan.delivery.lease_id) == mark",
                "lease_mark(orphan.delivery.lease_id) != 0",
            ),
        ),
        ("tests/unit/cluster/test_adoption.py",),
    ),
    Mistake(
        "a death under a job is told once only",
        (
            Change(
                "cluster/watch.py",
                "            self.unsettled[worker, incarnation] = death\n",
                "            pass\n",
            ),
        ),
        ("tests/unit/cluster/test_watch.py",),
    ),
    Mistake(
        "a message that does not fit is dropped",
        (
            Change(
                "cluster/channel.py",
                "                if error.errno in TRY_LATER:\n                    return\n",
                "                if error.errno in TRY_LATER:\n"
                "                    self._outgoing.clear()\n",
            ),
        ),
        (
            "tests/unit/cluster/test_channel.py",
            "-k",
            "kept",
        ),
    ),
    Mistake(
        "the monitor confirms what it could not record",
        (
            Change(
                "cluster/monitor.py",
                "pause_seconds, one))\n                return\n",
                "pause_seconds, one))\n",
            ),
        ),
        ("tests/unit/cluster/test_monitor.py",),
    ),
    Mistake(
        "a transaction left open goes on into the next job",
        (
            Change(
                "cluster/worker/connections.py",
                "alias != besides and _is_open(connection)",
                "not connection",
            ),
        ),
        (
            "tests/cluster/test_transactions.py",
            "-k",
            "next_job",
        ),
        needs_cluster=True,
    ),
    Mistake(
        "children of tasks ignore being told to end",
        (
            Change(
                "cluster/process.py",
                "        signal.signal(number, _do_nothing)\n",
                "        signal.signal(number, signal.SIG_IGN)\n",
            ),
        ),
        (
            "tests/cluster/test_attempts.py",
            "-k",
            "children_of_its_own",
        ),
        needs_cluster=True,
    ),
    Mistake(
        "a connection that was opened early stays open in the sentinel",
        (
            Change(
                "cluster/crew.py", "        connections.close_all()", "        connections.all()"
            ),
            Change(
                "management/run.py",
                "    connections.close_all()\n    for connection in connections.all",
                "    for connection in [] and connections.all",
            ),
        ),
        (
            "tests/cluster/test_cli.py",
            "-k",
            "sentinel_has_no_connection",
        ),
        "postgres",
        needs_cluster=True,
    ),
    Mistake(
        "a retry under concurrency reads the database on the event loop",
        (
            Change(
                "cluster/worker/runners.py",
                "        if delivery.attempt > 1 or is_marked(delivery.job_id):",
                "        if is_marked(delivery.job_id):",
            ),
        ),
        (
            "tests/cluster/test_concurrent_workers.py",
            "-k",
            "tried_again",
        ),
        needs_cluster=True,
    ),
    Mistake(
        "an atomic task is acked outside of its transaction",
        (
            Change(
                "jobs/execute.py",
                "            _refuse_stale(finish",
                "        _refuse_stale(finish",
            ),
        ),
        ("tests/lifecycle/test_atomic.py",),
    ),
    Mistake(
        "an atomic task in a cluster is acked outside of its transaction",
        (
            Change(
                "jobs/execute.py",
                "            _refuse_stale(finish",
                "        _refuse_stale(finish",
            ),
        ),
        ("tests/story/test_atomic.py",),
        "postgres",
        needs_cluster=True,
    ),
    Mistake(
        "an atomic task with a stale lease is committed",
        (
            Change(
                "jobs/execute.py",
                "    if stale:",
                "    if not stale and stale:",
            ),
        ),
        ("tests/lifecycle/test_atomic.py",),
    ),
    Mistake(
        "the time limit of an atomic task goes on while it is recorded",
        (
            Change(
                "jobs/execute.py",
                "        return run_and_record(",
                "        with self._limit(9.0):\n          return run_and_record(",
            ),
        ),
        ("tests/lifecycle/test_atomic.py",),
    ),
    Mistake(
        "a unique key is taken from whoever has it by now",
        (
            Change(
                "store/sql/unique_take_over.sql",
                "  AND stoker_unique.job_id = taking.old_job_id\n",
                "",
            ),
        ),
        ("tests/guards/test_unique_transactions.py", "-k", "is_a_duplicate and ended"),
        "postgres",
    ),
    Mistake(
        "a unique key counts as taken whether the INSERT did anything or not",
        (
            Change(
                "store/engines/postgresql.py",
                '"unique_insert", _takings(takings))) == len(takings)',
                '"unique_insert", _takings(takings))) <= len(takings)',
            ),
        ),
        ("tests/guards/test_unique_transactions.py", "-k", "is_a_duplicate and new"),
        "postgres",
    ),
    Mistake(
        "a unique key is taken without asking once more whether its job has ended",
        (
            Change(
                "store/sql/unique_take_over.sql",
                "  AND {condition}\n",
                "",
            ),
        ),
        ("tests/guards/test_unique_transactions.py", "-k", "is_so_no_more"),
        "postgres",
    ),
    Mistake(
        "a job that is kept is not held",
        (
            Change(
                "store/engines/rows.py",
                'f"FOR {lock}", among',
                '"" if lock == "SHARE" else f"FOR {lock}", among',
            ),
        ),
        ("tests/guards/test_unique_transactions.py", "-k", "does_not_start"),
        "postgres",
    ),
    Mistake(
        "a job that was blocked while it was held is never called",
        (
            Change(
                "jobs/enqueue.py",
                "                look_after(self._alias, self._neglected)\n",
                "                pass\n",
            ),
        ),
        ("tests/guards/test_unique_transactions.py", "-k", "is_blocked"),
        "postgres",
    ),
    Mistake(
        "upkeep deletes a unique key whose job is another by now",
        (
            Change(
                "models/unique_key.py",
                "if over[pk] == job_id]",
                "if over[pk]]",
            ),
        ),
        ("tests/guards/test_unique_transactions.py", "-k", "just_been_taken"),
        "sqlite",
    ),
    Mistake(
        "a replaced job keeps the package of another id",
        (
            Change(
                "jobs/sealing.py",
                "            data = self._sealer.seal(package)\n",
                "            pass\n",
            ),
        ),
        ("tests/guards/test_unique.py", "-k", "what_the_newcomer_says"),
        "sqlite",
    ),
    Mistake(
        "a cancelled task that goes on is left alone",
        (
            Change(
                "cluster/watch.py",
                "        if told_ns is None or self",
                "        if told_ns is not None or self",
            ),
        ),
        ("tests/cluster/test_cancel.py", "-k", "does_not_listen"),
        needs_cluster=True,
    ),
    Mistake(
        "who was cancelled before it began is not told",
        (
            Change(
                "jobs/execute.py",
                "            opened.interruption.check()\n",
                "",
            ),
        ),
        ("tests/lifecycle/test_atomic.py", "-k", "before_it_began"),
    ),
    Mistake(
        "a tick is fired before it is due",
        (Change("schedules/fire.py", "        if row.due_us > now:", "        if not now:"),),
        ("tests/integration/test_schedules.py", "-k", "becomes_a_job_once"),
    ),
    Mistake(
        "a tick that is there already is fired again",
        (
            Change(
                "schedules/fire.py",
                "        insert_ticks(self._ticks, progress.ticks)",
                "        self._ticks.bulk_create(progress.ticks, ignore_conflicts=True)",
            ),
        ),
        ("tests/integration/test_schedules.py", "-k", "not_fired_again"),
    ),
    Mistake(
        "of a time that comes twice, the second is taken",
        (Change("values/cron.py", "tzinfo=zone, fold=0", "tzinfo=zone, fold=1"),),
        ("tests/unit/schedules/test_rules.py",),
    ),
    Mistake(
        "an old edition of the code overrules the newest",
        (Change("schedules/declare.py", "if alive[:1] != [self._digest]:", "if not alive:"),),
        ("tests/integration/test_declared_schedules.py", "-k", "flap"),
    ),
    Mistake(
        "a group is over though members are open",
        (
            Change(
                "workflows/advance.py",
                "open_ones = members.filter(state__in=OPEN)",
                "open_ones = members.filter(state__in=())",
            ),
        ),
        ("tests/workflows/test_flow.py",),
    ),
    Mistake(
        "what a failed attempt has added is part of the workflow",
        (
            Change(
                "workflows/advance.py",
                "filter(state=State.HELD, added_in=attempt)",
                "filter(state=State.HELD)",
            ),
        ),
        ("tests/workflows/test_flow.py", "-k", "added"),
    ),
    Mistake(
        "a step goes on as often as its end is recorded",
        (
            Change(
                "workflows/advance.py",
                'steps = ours.filter(state=State.ENQUEUED).defer("sealed", "value")',
                'steps = ours.defer("sealed", "value")',
            ),
        ),
        ("tests/workflows/test_life.py", "-k", "recorded_again"),
        needs_redis=True,
    ),
    Mistake(
        "what was not signed is unpickled whatever it holds",
        (
            Change(
                "contrib/django_q/importing.py",
                "        if (module, name) not in PLAIN:",
                "        if not module:",
            ),
        ),
        ("tests/contrib/django_q/test_import.py", "-k", "calls_nothing"),
    ),
    Mistake(
        "what was imported and is over is imported again",
        (
            Change(
                "contrib/django_q/importing.py",
                "            notes.create(**note)\n",
                "",
            ),
        ),
        ("tests/contrib/django_q/test_import.py", "-k", "copied_once"),
    ),
    Mistake(
        "the 31st becomes the 29th when the row of a schedule is saved",
        (
            Change(
                "contrib/django_q/models/schedule.py",
                "when = _when(row, known if is_kept else None)",
                "when = _when(row, None)",
            ),
        ),
        ("tests/contrib/django_q/test_schedules.py", "-k", "31st"),
    ),
    Mistake(
        "an error in the shim takes the end of a job with it",
        (
            Change(
                "contrib/django_q/recording.py",
                "    except Exception:\n        if len(ends) > 1:",
                "    except MemoryError:\n        if len(ends) > 1:",
            ),
        ),
        ("tests/contrib/django_q/test_keeping.py", "-k", "keeps_no_job"),
    ),
    Mistake(
        "nobody is told of what fails together with what holds it",
        (
            Change(
                "workflows/advance.py",
                "            self._call_back(wave)  # now",
                "            # now",
            ),
        ),
        ("tests/workflows/test_batches.py", "-k", "on_error"),
    ),
    Mistake(
        "two who retry a workflow send the same job again",
        (
            Change(
                "workflows/control.py",
                "if not reopen(alias, job.pk, job_id):",
                "if not reopen(alias, job.pk, job_id) and False:",
            ),
        ),
        ("tests/workflows/test_batches.py", "-k", "retries"),
    ),
    Mistake(
        "a failure whose ack was repeated counts twice",
        (
            Change(
                "jobs/record.py",
                "done = _recorded(settings, verdicts) if is_again else set()",
                "done: set[Lease] = set()",
            ),
        ),
        ("tests/integration/test_fronted.py", "-k", "recorded_again"),
        needs_redis=True,
    ),
    Mistake(
        "what a broker delivers again is run again",
        (Change("brokers/fronted.py", "self._done(over) if over else set()", "set[UUID]()"),),
        ("tests/integration/test_fronted.py", "-k", "not_run_again"),
        needs_redis=True,
    ),
    Mistake(
        "a Redis whose memory is full lets no lease be extended",
        (Change("brokers/redis/lua/extend.lua", "go_on_when_full()", ""),),
        ("tests/integration/test_redis_server.py", "-k", "full_memory"),
        needs_redis=True,
    ),
    Mistake(
        "the driver sends again what Redis may have done",
        (Change("brokers/redis/connection.py", "Retry(NoBackoff(), 0)", "Retry(NoBackoff(), 3)"),),
        ("tests/integration/test_redis_server.py", "-k", "repeated_by_the_driver"),
        needs_redis=True,
    ),
    Mistake(
        "a requeue that is taken back lets a halted sequence go on",
        (
            Change(
                "dead_letters/requeueing.py", "        halt_again(alias, halts, seen.job_id)\n", ""
            ),
        ),
        ("tests/integration/test_undo_requeue.py", "-k", "sequence"),
    ),
    Mistake(
        "a job that has been tried is withdrawn with its requeue",
        (
            Change(
                "dead_letters/requeueing.py",
                " or Attempt.objects.using(alias).filter(job_id=job_id).exists()",
                "",
            ),
        ),
        ("tests/integration/test_undo_requeue.py", "-k", "next_attempt"),
    ),
    Mistake(
        "a requeue that is taken back leaves its workflow running",
        (
            Change(
                "workflows/follow.py",
                "    give_back(alias, job_id, failed_job_id)\n",
                "",
            ),
        ),
        ("tests/integration/test_undo_requeue.py", "-k", "workflow"),
    ),
    Mistake(
        "a timeline leaves out an attempt of which nothing is known",
        (
            Change(
                "inspect/timeline.py",
                "yield Moment(kind=MomentKind.ATTEMPT_UNKNOWN, number=number)",
                "pass",
            ),
        ),
        ("tests/integration/test_timeline.py", "-k", "not_written_down"),
    ),
    Mistake(
        "a page of the admin that only asks does what it asks about",
        (
            Change(
                "admin/dead_letters.py",
                'if "confirmed" in post:',
                "if post:",
            ),
        ),
        ("tests/admin/test_dead_letters.py", "-k", "ticked"),
        database="with_admin",
    ),
    Mistake(
        "an operation in the admin needs no permission",
        (
            Change(
                "admin/base.py",
                "            visit.require(operation.permission)\n",
                "",
            ),
        ),
        ("tests/admin/test_permissions.py", "-k", "without_the_permission"),
        database="with_admin",
    ),
    Mistake(
        "the dashboard lets everybody in who is signed in",
        (
            Change(
                "dashboard/views.py",
                "    if not visit.may(permission):",
                "    if False:",
            ),
        ),
        ("tests/dashboard/test_doing.py", "-k", "who_may_not"),
        database="postgres",
    ),
    Mistake(
        "numbers of the dashboard's charts are written as people write them",
        (
            Change(
                "templates/stoker/dashboard/chart.html", "{% localize off %}", "{% localize on %}"
            ),
        ),
        ("tests/dashboard/test_pages.py", "-k", "no_language"),
        database="postgres",
    ),
    Mistake(
        "the slowest line of a queue's ready jobs is not looked at",
        (
            Change(
                "store/sql/ready_fronts.sql",
                "ready.{rank} > line.place",
                "ready.{rank} < line.place",
            ),
        ),
        ("tests/integration/test_stats.py",),
    ),
    Mistake(
        "on SQLite a claim takes a job that has got guards since it looked",
        tuple(
            Change(f"store/sql/{name}.sql", " AND ready.guards = 0", "")
            for name in ("listed_lease", "listed_leave")
        ),
        ("tests/integration/test_sqlite_claims.py",),
    ),
    Mistake(
        "on SQLite a stale lease ends the one that is valid",
        (
            Change(
                "store/sql/listed_end.sql",
                "\n        AND held.lease_id = json_extract(given.value, '$[1]')",
                "",
            ),
        ),
        ("tests/conformance/test_leases.py",),
    ),
    Mistake(
        "on SQLite nobody waits in the line of writers",
        (
            Change(
                "store/engines/sqlite.py",
                "if not is_busy or time.monotonic() >= until:\n                raise",
                "raise",
            ),
        ),
        ("tests/integration/test_sqlite_tuning.py",),
    ),
    Mistake(
        "on SQLite a report of a write is taken for its commit",
        (
            Change(
                "store/wake.py",
                "self.max_sleep_seconds = time.monotonic(), FIRST_LOOK_SECONDS",
                "self.max_sleep_seconds = time.monotonic(), None",
            ),
        ),
        ("tests/integration/test_sqlite_wake.py",),
    ),
)
