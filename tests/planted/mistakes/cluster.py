"""Mistakes in the cluster and its command."""

from tests.planted.mistake import Change, Mistake
from tests.planted.operations import drop, drop_operand, last, replace

MISTAKES = (
    Mistake(
        "an error that may pass makes a success a failure",
        [
            Change(
                "cluster.monitor.monitor:Monitor._is_recorded_as_failure",
                replace("is_too_large or isinstance(error, CAUSED_BY_OUTCOME)", "True"),
            )
        ],
        "tests/unit/cluster/test_monitor.py",
        "unknown_error",
    ),
    Mistake(
        "a monitor that stops forgets what it has counted",
        [
            Change(
                "cluster.monitor.monitor:Monitor.run",
                last(drop("self.patience.call(self.tallies.write)")),
            )
        ],
        "tests/cluster/test_metrics.py",
        needs_cluster=True,
    ),
    Mistake(
        "a loop that hangs counts as healthy",
        [
            Change(
                "management.health:judge_loops",
                replace("ages[slowest] > max_silence_seconds", "not ages"),
            )
        ],
        "tests/cluster/test_service.py",
        "loops_of_one_cluster_turn",
    ),
    Mistake(
        "the watchdog is fed though a loop hangs",
        [
            Change(
                "cluster.sentinel:ServiceManager.turn",
                drop_operand(
                    "_ and _ and self._loops.all_turn()",
                    "self._loops.all_turn()",
                ),
            )
        ],
        "tests/cluster/test_service.py",
        "no_watchdog",
    ),
    Mistake(
        "a new pusher hurries a cluster that was asked to stop",
        [
            Change(
                "cluster.sentinel:Sentinel._stop_for_good",
                replace("self.stop()", "self.stop_at = 0.0"),
            )
        ],
        "tests/unit/cluster/test_stop_signals.py",
        "another_request_to_stop",
    ),
    Mistake(
        "a cluster claims once more after it has read that it is to be quiet",
        [
            Change(
                "cluster.pusher.requests:Requests.allow_claims",
                drop_operand(
                    "are_known and not self.of_cluster.is_quiet",
                    "not self.of_cluster.is_quiet",
                ),
            )
        ],
        "tests/unit/cluster/test_pauses.py",
        "quiet",
    ),
    Mistake(
        "requests to cancel jobs are read and not carried out",
        [
            Change(
                "cluster.pusher.requests:Requests._look",
                drop("self.cancels.carry_out(...)"),
            )
        ],
        "tests/lifecycle/test_operator_requests.py",
    ),
    Mistake(
        "prefetched jobs of a paused queue are sent to workers again",
        [
            Change(
                "cluster.pusher.flights:Flights.take_back",
                drop_operand(
                    "flight.delivery.queue in self.paused or flight.is_unanswered",
                    "flight.delivery.queue in self.paused",
                ),
            )
        ],
        "tests/unit/cluster/test_pauses.py",
    ),
    Mistake(
        "a claim that failed is made again for as many jobs",
        [
            Change(
                "cluster.pusher.claims:Claims._note_failure", replace("max(1, limit // 2)", "limit")
            )
        ],
        "tests/unit/cluster/test_permits.py",
        "fewer_jobs",
    ),
    Mistake(
        "leases are never extended",
        [
            Change(
                "cluster.pusher.leases:HeldLeases.extend_due",
                replace("now - one.leased_at >= self._lease_seconds / 3", "False"),
            )
        ],
        "tests/unit/cluster/test_leases.py",
    ),
    Mistake(
        "jobs of the store end with those of a broker that is away",
        [
            Change(
                "cluster.pusher.leases:by_lessor",
                replace("of_store if is_stores else patience", "patience"),
            )
        ],
        "tests/unit/cluster/test_leases.py",
        "of_the_store",
    ),
    Mistake(
        "the lease is counted from the end of the call",
        [
            Change(
                "cluster.pusher.leases:HeldLeases._note",
                replace("flight.leased_at = now", "flight.leased_at = time.monotonic()"),
            )
        ],
        "tests/unit/cluster/test_leases.py",
    ),
    Mistake(
        "no process stops jobs at the fence",
        [Change("cluster.board:is_fenced", replace("bool(fence_ns)", "not fence_ns"))],
        "tests/unit/cluster/test_watch.py",
    ),
    Mistake(
        "the attempt of a released job counts",
        [
            Change(
                "cluster.pusher.claims:Claims._release",
                replace(
                    "flight.delivery.attempt - 1",
                    "flight.delivery.attempt",
                ),
            )
        ],
        "tests/cluster/test_stop.py",
        "interrupted and deadline",
        needs_cluster=True,
    ),
    Mistake(
        "a request to replace a worker hits its successor",
        [
            Change(
                "cluster.crew:Crew.replace",
                drop_operand(
                    "started is not None and started.incarnation == incarnation",
                    "started.incarnation == incarnation",
                ),
            )
        ],
        "tests/cluster/test_requests.py",
        "recycled",
        needs_cluster=True,
    ),
    Mistake(
        "a worker that the cluster was told to do without is started again",
        [
            Change(
                "cluster.crew:Crew.start_missing",
                drop_operand(
                    "not self.is_stopping and number < self._workers", "number < self._workers"
                ),
            )
        ],
        "tests/cluster/test_requests.py",
        "resized",
        needs_cluster=True,
    ),
    Mistake(
        "a recall ignores which jobs have started",
        [
            Change(
                "cluster.pusher.roster:Recall.has_started",
                drop_operand("not is_there or number <= last_started", "number <= last_started"),
            )
        ],
        "tests/unit/cluster/test_roster.py",
    ),
    Mistake(
        "jobs are kept though no worker here can start them",
        [
            Change(
                "cluster.pusher.flights:Flights.release_unstarted",
                replace("one.came_at <= before", "one.came_at <= 0.0"),
            )
        ],
        "tests/unit/cluster/test_roster.py",
    ),
    Mistake(
        "jobs of one lock are sent to workers together",
        [
            Change(
                "cluster.pusher.flights:Turns.begin",
                replace("line.first is None", "True"),
            )
        ],
        "tests/unit/cluster/test_flights.py",
    ),
    Mistake(
        "followers start although the job before them was lost",
        [
            Change(
                "cluster.pusher.flights:Flights.remove",
                replace("self.turns.leave(flight)", "filter(None, [self.turns.end(flight)])"),
            )
        ],
        "tests/unit/cluster/test_flights.py",
    ),
    Mistake(
        "a lock never becomes free while jobs with it arrive",
        [
            Change(
                "guards.admission:_Admission._may_follow",
                replace("self._has_other_lines(need.key_id, place)", "False"),
            )
        ],
        "tests/conformance/test_guards_in_turn.py",
    ),
    Mistake(
        "followers of many jobs keep idle workers from other jobs",
        [
            Change(
                "cluster.pusher.flights:LineOfFlights.held_up_at",
                replace(
                    "min(self.first.came_at, self.followers[-1].came_at)", "self.first.came_at"
                ),
            )
        ],
        "tests/unit/cluster/test_flights.py",
    ),
    Mistake(
        "jobs follow one that another cluster has taken over",
        [
            Change(
                "guards.admission:_Admission._held_ahead",
                replace("leases.filter(holder=holder)", "leases"),
            )
        ],
        "tests/conformance/test_guards_in_turn.py",
    ),
    Mistake(
        "jobs of an unknown task are prefetched",
        [
            Change(
                "cluster.pusher.estimates:RunTimes._look_at",
                replace("self._expected.get(name, PREFETCH_SECONDS)", "0.0"),
            )
        ],
        "tests/unit/cluster/test_roster.py",
    ),
    Mistake(
        "a last try is handed out although the broker does not know",
        [
            Change(
                "cluster.pusher.roster:Roster._note",
                replace("self.note_handed_out(unnoted)", "()"),
            )
        ],
        "tests/unit/cluster/test_roster.py",
    ),
    Mistake(
        "nothing is claimed from the store while the broker is away",
        [
            Change(
                "cluster.pusher.claims:Claims._is_broker_away",
                replace("not self._patience.has_met_a_lock", "False"),
            )
        ],
        "tests/unit/cluster/test_claims_in_outage.py",
    ),
    Mistake(
        "a claim whose answer from the broker was lost leaves no doubt if the store leased jobs",
        [
            Change(
                "brokers.dispatch:Dispatch.in_doubt",
                drop_operand("one.leaves_doubt or one is self._lost", "one is self._lost"),
            )
        ],
        "tests/unit/cluster/test_claims_in_outage.py",
        "answer_was_lost",
    ),
    Mistake(
        "a worker does not look whether a job was recalled",
        [
            Change(
                "cluster.worker.worker:Worker.begin",
                replace(
                    "self._own[place.RECALLED_THROUGH] >= number",
                    "self._own[place.RECALLED_THROUGH] < 0",
                ),
            )
        ],
        "tests/cluster/test_stop.py",
        "prefetched",
        needs_cluster=True,
    ),
    Mistake(
        "a worker takes jobs from the connection of a dead pusher",
        [
            Change(
                "cluster.worker.workload:Workload.take_in",
                drop_operand("line is self._line and (not self.is_leaving)", "line is self._line"),
            )
        ],
        "tests/unit/cluster/test_workload.py",
    ),
    Mistake(
        "a worker forgets what it has reported before it is recorded",
        [
            Change(
                "cluster.worker.workload:Workload.finish",
                replace("self._reports[number] = report", "self._jobs.pop(number, None)"),
            )
        ],
        "tests/unit/cluster/test_workload.py",
    ),
    Mistake(
        "a new pusher releases jobs of workers that it has not asked",
        [
            Change(
                "cluster.pusher.leases:Adoption.is_open",
                drop_operand(
                    "self._expected is None or bool(self._expected)", "bool(self._expected)"
                ),
            )
        ],
        "tests/unit/cluster/test_adoption.py",
    ),
    Mistake(
        "the death of an old worker counts against a new lease",
        [
            Change(
                "cluster.pusher.leases:Adoption._adopt_seen",
                replace(
                    "lease_mark(orphan.delivery.lease_id) == mark",
                    "lease_mark(orphan.delivery.lease_id) != 0",
                ),
            )
        ],
        "tests/unit/cluster/test_adoption.py",
    ),
    Mistake(
        "a death of a worker with a job is reported only once",
        [Change("cluster.crew:Watch.explain", drop("self.unsettled[worker, incarnation] = death"))],
        "tests/unit/cluster/test_watch.py",
    ),
    Mistake(
        "a message that does not fit is dropped",
        [Change("cluster.channel:Control.flush", replace("return", "self._outgoing.clear()"))],
        "tests/unit/cluster/test_channel.py",
        "kept",
    ),
    Mistake(
        "the monitor confirms outcomes that it could not record",
        [Change("cluster.monitor.monitor:Monitor._finish", last(drop("return")))],
        "tests/unit/cluster/test_monitor.py",
    ),
    Mistake(
        "a transaction left open goes on into the next job",
        [
            Change(
                "cluster.worker.clean_up:_connections_in_transaction",
                replace(
                    "connection.in_atomic_block or is_in_transaction(connection)", "not connection"
                ),
            )
        ],
        "tests/cluster/test_transactions.py",
        "next_job",
        needs_cluster=True,
    ),
    Mistake(
        "children of tasks ignore being told to end",
        [
            Change(
                "cluster.process:_leave_stopping_to_the_sentinel",
                replace("_do_nothing", "signal.SIG_IGN"),
            )
        ],
        "tests/cluster/test_attempts.py",
        "child_processes",
        needs_cluster=True,
    ),
    Mistake(
        "a connection that was opened early stays open in the sentinel",
        [
            Change("cluster.crew:Crew._start", replace("connections.close_all", "connections.all")),
            Change("management.run:release_connections", drop("connections.close_all()")),
        ],
        "tests/cluster/test_cli.py",
        "sentinel_has_no_connection",
        needs_cluster=True,
    ),
    Mistake(
        "a retry under concurrency reads the database on the event loop",
        [
            Change(
                "cluster.worker.worker:ConcurrentRunner._attend",
                drop_operand(
                    "delivery.attempt == 1 and not is_marked(delivery.job_id)",
                    "delivery.attempt == 1",
                ),
            )
        ],
        "tests/cluster/test_concurrent_workers.py",
        "failed_job_in_a_concurrent_worker",
        needs_cluster=True,
    ),
    Mistake(
        "a cancelled task that goes on is left alone",
        [
            Change(
                "cluster.crew:Watch._goes_on_though_cancelled",
                replace("told_ns is None", "told_ns is not None"),
            )
        ],
        "tests/cluster/test_cancel.py",
        "ignores_its_cancellation",
        needs_cluster=True,
    ),
    Mistake(
        "a cluster buries itself",
        [
            Change(
                "cluster.scheduler.rescue:Rescue.__init__",
                replace(
                    "Cluster.objects.using(self._alias).exclude(pk=plan.cluster_id)",
                    "Cluster.objects.using(self._alias)",
                ),
            )
        ],
        "tests/cluster/test_upkeep.py",
        "silent",
    ),
    Mistake(
        "clusters are buried though the clock has jumped",
        [
            Change(
                "cluster.scheduler.rescue:Rescue.bury_silent_clusters",
                replace("self._clock.can_be_trusted()", "True"),
            )
        ],
        "tests/cluster/test_upkeep.py",
        "silent",
    ),
    Mistake(
        "one job whose key is locked keeps others from being rescued",
        [Change("cluster.scheduler.rescue:Rescue._finish", drop("self._finish(settings, free)"))],
        "tests/integration/test_locked_rescue.py",
        database="postgres",
    ),
    Mistake(
        "half of the jobs are not rescued beside one that cannot be recorded",
        [
            Change(
                "cluster.scheduler.rescue:Rescue._finish",
                drop("self._finish(settings, attempted[middle:])"),
            )
        ],
        "tests/cluster/test_upkeep.py",
        "cannot_be_rescued",
    ),
)
