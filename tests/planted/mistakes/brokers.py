"""Mistakes in brokers, the store and models."""

from tests.planted.mistake import Change, Mistake, Text
from tests.planted.operations import drop, drop_operand, last, precede, replace

MISTAKES = (
    Mistake(
        "aggregated metrics rows are lost",
        [Change("models.metrics:fold_oldest", drop("rows.bulk_create(merged)"))],
        "tests/integration/test_metrics.py",
        "old_rows_are_folded_without_changing_the_figures",
    ),
    Mistake(
        "counters for Prometheus go back when old rows are deleted",
        [Change("models.metrics:forget_before", drop("rows.add_to_totals(seen)"))],
        "tests/integration/test_metrics.py",
        "totals_never_decrease",
    ),
    Mistake(
        "MongoDB: a stale lease ends a job",
        [
            Change(
                "brokers.mongodb.documents:selections",
                replace(
                    "{'_id': {'$in': some}, 'lease': lease_id, 'state': 'running'}",
                    "{'_id': {'$in': some}, 'state': 'running'}",
                ),
            )
        ],
        "tests/conformance/test_leases.py",
        "mongodb and late_owner",
    ),
    Mistake(
        "MongoDB: two claims take the same jobs",
        [
            Change(
                "brokers.mongodb.broker:MongodbBroker._lease",
                replace("{'_id': {'$in': ids}, **still}", "{'_id': {'$in': ids}}"),
            )
        ],
        "tests/conformance/test_concurrency.py",
        "mongodb and threads_claim",
    ),
    Mistake(
        "MongoDB: a repeated relay of a job that has ended adds a second job",
        [
            Change(
                "brokers.mongodb.broker:MongodbBroker.relay",
                drop_operand("as_document(message) | {'relayed': True}", "{'relayed': True}"),
            )
        ],
        "tests/integration/test_mongodb.py",
        "repeated_after_the_end",
    ),
    Mistake(
        "arrivals: a message that is delivered again becomes a second job",
        [Change("brokers.arrivals:Arrivals._note", replace("relayed.note", "set"))],
        "tests/integration/test_arrivals.py",
        "after_its_end",
    ),
    Mistake(
        "arrivals: a message is dropped before the store has its job",
        [
            Change(
                "brokers.arrivals:Arrivals._relay",
                precede("parcels = self._received", "self.transport.drop(self._received)"),
            )
        ],
        "tests/integration/test_arrivals.py",
        "given_back_at_the_end or messages_stay_hidden_while_the_store_fails",
    ),
    Mistake(
        "arrivals: receipts of messages that could not be stored are not extended",
        [
            Change(
                "brokers.arrivals:Arrivals.claim",
                drop("with self._receive_lock:\n    self._extend_receipts()"),
            )
        ],
        "tests/integration/test_arrivals.py",
        "messages_stay_hidden_while_the_store_fails",
    ),
    Mistake(
        "arrivals: a backlog in the store delays new messages",
        [
            Change(
                "brokers.arrivals:Arrivals.claim",
                drop_operand("has_room or is_due", "is_due"),
            )
        ],
        "tests/integration/test_arrivals.py",
        "backlog",
    ),
    Mistake(
        "arrivals: a backlog of slow jobs in the store delays new messages",
        [
            Change(
                "brokers.arrivals:Arrivals.claim",
                drop_operand(
                    "has_taken_many or time.monotonic() >= self._relay_at",
                    "time.monotonic() >= self._relay_at",
                ),
            )
        ],
        "tests/integration/test_arrivals.py",
        "backlog",
    ),
    Mistake(
        "arrivals: a message that the store refuses stops the others",
        [Change("brokers.transport:as_message", replace("_can_be_stored(message)", "message"))],
        "tests/integration/test_arrivals.py",
        "body_the_store_cannot_take_becomes_one_job_with_that_package",
    ),
    Mistake(
        "arrivals: a message that the character set of the tables lacks stops the others",
        [
            Change(
                "brokers.arrivals:_concerns_single_jobs",
                drop_operand(
                    "isinstance(error, refusals) or is_text_refused(error)",
                    "is_text_refused(error)",
                ),
            )
        ],
        "tests/integration/test_arrivals.py",
        "tables_cannot_hold",
        database="mariadb",
    ),
    Mistake(
        "arrivals: a server that does not answer counts as empty",
        [Change("brokers.arrivals:Arrivals._receive", replace("poller.is_idle", "True"))],
        "tests/integration/test_arrivals.py",
        "does_not_count_as_empty",
    ),
    Mistake(
        "arrivals: the poller's thread ends at an unexpected error",
        [
            Change(
                "brokers.arrivals:Poller._run",
                replace("self.note_failure(error, asked_at)", "return"),
            )
        ],
        "tests/integration/test_arrivals.py",
        "arrive_when_the_server_is_back",
    ),
    Mistake(
        "arrivals: unclaimed messages stay with the poller",
        [Change("brokers.arrivals:Poller._offer", drop("self._transport.release(parcels)"))],
        "tests/integration/test_arrivals.py",
        "close_gives_back_received_messages or unclaimed_message_is_given_back",
    ),
    Mistake(
        "IronMQ: a queue forgets its messages after a week",
        [Change("brokers.ironmq:IronmqTransport._make", replace("KEPT_SECONDS", "604800"))],
        "tests/integration/test_ironmq.py",
        "short_message_expiration_is_reported_as_weakness",
    ),
    Mistake(
        "IronMQ: the old reservation id is used after a touch",
        [
            Change(
                "brokers.ironmq:IronmqTransport.extend",
                replace(
                    "_._replace(reservation_id=_)",
                    "old",
                ),
            )
        ],
        "tests/integration/test_ironmq.py",
        "new_reservation",
    ),
    Mistake(
        "Disque: a job is on one node only",
        [
            Change(
                "brokers.disque.transport:DisqueTransport._addjob",
                replace("self._nodes.copies", "1"),
            )
        ],
        "tests/integration/test_disque.py",
        "dead_node_loses_no_job",
    ),
    Mistake(
        "Redis: a relay of long ago is accepted",
        [
            Change(
                "brokers.redis.broker:RedisBroker._enqueue",
                replace("(remember_seconds, until)", "(remember_seconds, 0.0)"),
            )
        ],
        "tests/integration/test_redis_server.py",
        "relay_that_comes_too_late_is_refused",
        needs_redis=True,
    ),
    Mistake(
        "a cluster that was asked to stop can be asked to go on",
        [
            Change(
                "models.cluster:ClusterQuerySet.ask",
                replace(
                    "self.filter(pk=cluster_id).exclude(request=Cluster.Request.STOP)",
                    "self.filter(pk=cluster_id)",
                ),
            )
        ],
        "tests/api/test_operating.py",
        "cluster_requests_are_shown_and_logged",
        database="postgres",
    ),
    Mistake(
        "a claim that finds nothing behind the watermarks does not scan from the start",
        [Change("brokers.orm.claim:Watermarks.guide", replace("is_more()", "True"))],
        "tests/integration/test_watermarks.py",
        "late or locked or random",
        database="postgres",
    ),
    Mistake(
        "a job that falls due is missed because of a watermark",
        [Change("brokers.orm.broker:OrmBroker._promote_due", drop("self._marks.lower(promoted)"))],
        "tests/integration/test_watermarks.py",
        "due_job_of_a_queue_not_served_stays_there or due_deferred_job_is_claimed",
        database="postgres",
    ),
    Mistake(
        "a claim begins at the start each time",
        [Change("brokers.orm.claim:Watermarks.note", replace("row[JOB_ID]", "FIRST_ID"))],
        "tests/integration/test_watermarks.py",
        "claim_by_marks_reads_fewer_pages_than_a_full_scan",
        database="postgres",
    ),
    Mistake(
        "a deferred job that is added late is missed because of a watermark",
        [
            Change(
                "brokers.orm.broker:OrmBroker.claim",
                drop("has_looked = not self._marks.due_from_us"),
            )
        ],
        "tests/integration/test_watermarks.py",
        "deferred",
        database="postgres",
    ),
    Mistake(
        "a claim takes from paused queues",
        [
            Change(
                "brokers.orm.broker:OrmBroker.claim.claim_ready",
                replace("[name for name in named if name not in request.passed_over]", "[*named]"),
            )
        ],
        "tests/conformance/test_claim.py",
        "passed_over",
    ),
    Mistake(
        "ack does not ask for the lease id",
        [
            Text(
                "store/sql/claimed_ack.sql",
                "lease_id = ((SELECT %(leases)s::jsonb) ->> encode",
                "0 < ((SELECT %(leases)s::jsonb) ->> encode",
            )
        ],
        "tests/lifecycle/test_finish.py",
        "stale",
        database="postgres",
    ),
    Mistake(
        "release does not ask for the lease id",
        [
            Text(
                "store/sql/claimed_release.sql",
                "lease_id = ((SELECT %(returns)s::jsonb) -> encode",
                "0 < ((SELECT %(returns)s::jsonb) -> encode",
            )
        ],
        "tests/lifecycle/test_finish.py",
        "stale",
        database="postgres",
    ),
    Mistake(
        "rescue takes leases that are not over",
        [
            Text(
                "store/sql/claimed_claim_expired.sql",
                "leased_until_us < (extract",
                "leased_until_us <> (extract",
                times=2,
            )
        ],
        "tests/conformance/test_leases.py",
        database="postgres",
    ),
    Mistake(
        "a claim does not count the attempt",
        [
            Text(
                "store/sql/claim.sql",
                "queue, rank, attempts + 1, crashes",
                "queue, rank, attempts, crashes",
            )
        ],
        "tests/conformance/test_claim.py",
        database="postgres",
    ),
    Mistake(
        "a claim takes jobs of paused queues",
        [
            Text(
                "store/sql/claim.sql",
                "WHERE queue <> ALL (ARRAY(SELECT queue FROM stoker_pausedqueue))",
                "WHERE queue <> ''",
            )
        ],
        "tests/conformance/test_claim.py",
        "sees_pauses",
        database="postgres",
    ),
    Mistake(
        "the insert of a job is prepared inside the caller's transaction",
        [
            Change(
                "store.past_cursor:send_past_cursor",
                replace("driver.autocommit and is_idle and _ and _", "_keeps_inserts(connection)"),
            )
        ],
        "tests/integration/test_fresh.py",
        "in_a_transaction",
        database="postgres",
    ),
    Mistake(
        "an enqueue does not notice that its commit has failed",
        [
            Change(
                "store.past_cursor:_results_of_first",
                replace("first.append(result)", "first[:] = first or [result]"),
            )
        ],
        "tests/integration/test_fresh.py",
        "failed_insert_or_commit",
        database="postgres",
    ),
    Mistake(
        "a cached query plan reads a whole table",
        [Text("store/prepared.py", "-c enable_seqscan=off ", "")],
        "tests/conformance/test_plans.py",
        "kept",
        database="postgres",
    ),
    Mistake(
        "a unique key is taken although another job has it by now",
        [
            Text(
                "store/sql/unique_take_over.sql",
                "  AND stoker_unique.job_id = taking.old_job_id\n",
                "",
            )
        ],
        "tests/guards/test_unique_transactions.py",
        "is_a_duplicate and ended",
        database="postgres",
    ),
    Mistake(
        "a unique key counts as taken whether the INSERT did anything or not",
        [
            Change(
                "store.engines.postgresql:PostgreSQL.take_new_keys",
                replace("_ == len(takings)", "True"),
            )
        ],
        "tests/guards/test_unique_transactions.py",
        "is_a_duplicate and new",
        database="postgres",
    ),
    Mistake(
        "a unique key is taken without asking once more whether its job has ended",
        [Text("store/sql/unique_take_over.sql", "  AND {condition}\n", "")],
        "tests/guards/test_unique_transactions.py",
        "read_as_free_is_not_taken",
        database="postgres",
    ),
    Mistake(
        "an existing job with the same unique key is not locked",
        [
            Change(
                "store.engines.postgresql:PostgreSQL.hold",
                replace("f'FOR {lock}'", "'' if lock == 'SHARE' else f'FOR {lock}'"),
            )
        ],
        "tests/guards/test_unique_transactions.py",
        "does_not_start",
        database="postgres",
    ),
    Mistake(
        "upkeep deletes a unique key that another job has taken meanwhile",
        [
            Change(
                "models.unique_key:UniqueKeyQuerySet._delete",
                replace("over[pk] == job_id", "over[pk]"),
            )
        ],
        "tests/guards/test_unique_transactions.py",
        "just_been_taken",
    ),
    Mistake(
        "a recorded job that the broker delivers again runs again",
        [
            Change(
                "brokers.dispatch:Dispatch.claim_expired",
                replace(
                    "self._done(over) if over and place is not self.store else set()", "set[UUID]()"
                ),
            )
        ],
        "tests/integration/test_fronted.py",
        "not_run_again",
        needs_redis=True,
    ),
    Mistake(
        "Redis adds a job again that is leased and whose record is damaged",
        [Text("brokers/redis/lua/enqueue.lua", "not existing[i] and ", "")],
        "tests/integration/test_redis_damage.py",
        "is_not_added_again",
        needs_redis=True,
    ),
    Mistake(
        "a claim from two queues of Redis is not ordered by priority and age",
        [Text("brokers/redis/lua/claim.lua", "if count > 1 then", "if count > 2 then")],
        "tests/conformance/test_claim.py",
        "several_queues_are_claimed_by_priority and Redis",
        needs_redis=True,
    ),
    Mistake(
        "each of several jobs with equal records in Redis counts the attempts of all",
        [Text("brokers/redis/lua/common.lua", "if not seen[record] then", "if true then")],
        "tests/integration/test_redis_server.py",
        "change_independently",
        needs_redis=True,
    ),
    Mistake(
        "a Redis whose memory is full lets no lease be extended",
        [Text("brokers/redis/lua/extend.lua", "go_on_when_full()", "")],
        "tests/integration/test_redis_server.py",
        "full_memory",
        needs_redis=True,
    ),
    Mistake(
        "an enqueue that fails half-way in Redis leaves jobs that are in no line",
        [
            Text(
                "brokers/redis/lua/enqueue.lua",
                "redis.call('ZCARD', ready_prefix .. queue)",
                "redis.call('ZCARD', deferred)",
            )
        ],
        "tests/integration/test_redis_damage.py",
        "added_after_a_line_of_another_type",
        needs_redis=True,
    ),
    Mistake(
        "a call to Redis may read the answer of an interrupted one",
        [Text("brokers/redis/connection.py", '"protocol": 2', '"protocol": 3')],
        "tests/integration/test_redis_connections.py",
        "answer_of_an_interrupted_call",
        needs_redis=True,
    ),
    Mistake(
        "a claim from Redis does not read on in a long line whose jobs come first",
        [Text("brokers/redis/lua/claim.lua", "until #lines_ahead == 0", "until true")],
        "tests/integration/test_redis_server.py",
        "priority_and_age_decide_among_all_queues",
        needs_redis=True,
    ),
    Mistake(
        "a slot of Redis that is down stops the extension of all leases",
        [
            Change(
                "brokers.redis.slots:SlottedRedisBroker.extend_unlocked",
                last(replace("left", "set[Lease]()")),
            )
        ],
        "tests/integration/test_redis_topologies.py",
        "first_slots_node_is_stopped",
        needs_redis=True,
    ),
    Mistake(
        "the driver sends again what Redis may have done",
        [
            Change(
                "brokers.redis.connection:connect",
                replace("Retry(NoBackoff(), 0)", "Retry(NoBackoff(), 3)"),
            )
        ],
        "tests/integration/test_redis_connections.py",
        "driver_does_not_repeat_an_enqueue",
        needs_redis=True,
    ),
    Mistake(
        "two transactions that make the same key each start a job",
        [
            Text(
                "store/sql/claim_free_keys.sql",
                "DO NOTHING",
                "DO UPDATE SET places_by = excluded.places_by",
            )
        ],
        "tests/conformance/test_free_keys.py",
        "makes_meanwhile",
        database="postgres",
    ),
    Mistake(
        "only the first of several jobs with a new key is leased",
        [Text("store/sql/claim_free_keys.sql", "    HAVING count(*) = 1\n", "")],
        "tests/conformance/test_free_keys.py",
        "several_jobs",
        database="postgres",
    ),
    Mistake(
        "a job starts under a new key with a limit of 0",
        [Text("store/sql/claim_free_keys.sql", "        AND places > 0\n", "")],
        "tests/conformance/test_free_keys.py",
        "left_to_admission",
        database="postgres",
    ),
    Mistake(
        "a key that another transaction claims meanwhile is claimed twice",
        [
            Text(
                "store/sql/claim_free_keys.sql",
                "AND fence = (",
                "AND fence >= (",
            )
        ],
        "tests/conformance/test_free_keys.py",
        "claims_meanwhile",
        database="postgres",
    ),
    Mistake(
        "a claim of free keys fails at a locked key",
        [
            Text(
                "store/sql/claim_free_keys.sql",
                "AND NOT has_line\n    FOR UPDATE SKIP LOCKED",
                "AND NOT has_line\n    FOR UPDATE NOWAIT",
            )
        ],
        "tests/conformance/test_free_keys.py",
        "has_locked_is_skipped",
        database="postgres",
    ),
    Mistake(
        "a job with a free key overtakes those that wait for it",
        [Text("store/sql/claim_free_keys.sql", "        AND NOT has_line\n", "")],
        "tests/conformance/test_free_keys.py",
        "another_limit_is_left_to_admission",
        database="postgres",
    ),
    Mistake(
        "a job that changes a limit does not change it if the key is free",
        [
            Text(
                "store/sql/claim_free_keys.sql",
                "AND places = (",
                "AND places <= (",
            )
        ],
        "tests/conformance/test_free_keys.py",
        "another_limit_is_left_to_admission",
        database="postgres",
    ),
    Mistake(
        "a free key that an operator has closed is claimed",
        [
            Text(
                "store/sql/claim_free_keys.sql",
                "        AND COALESCE(places_set, places) = places\n",
                "",
            )
        ],
        "tests/conformance/test_free_keys.py",
        "another_limit_is_left_to_admission",
        database="postgres",
    ),
    Mistake(
        "the fencing number of a free key stays",
        [Text("store/sql/claim_free_keys.sql", "SET fence = fence + 1", "SET fence = fence")],
        "tests/conformance/test_free_keys.py",
        "free_again",
        database="postgres",
    ),
    Mistake(
        "a held key counts as free",
        [
            Text(
                "store/sql/claim_free_keys.sql",
                "    WHERE key_id NOT IN (SELECT key_id FROM held)\n",
                "",
            )
        ],
        "tests/conformance/test_free_keys.py",
        "held_key_waits",
        database="postgres",
    ),
    Mistake(
        "a job with one guard overtakes a job with two",
        [
            Text(
                "store/sql/claim_free_keys.sql",
                "    WHERE key_id NOT IN (SELECT key_id FROM contested)\n",
                "",
            )
        ],
        "tests/conformance/test_free_keys.py",
        "not_overtaken",
        database="postgres",
    ),
    Mistake(
        "known keys are locked before new ones are inserted",
        [
            Text("store/sql/claim_free_keys.sql", "(SELECT count(*) FROM made) >= 0", "true"),
            Text("store/sql/claim_free_keys.sql", "IN (SELECT key_id FROM made) OR", "IN ("),
            Text(
                "store/sql/claim_free_keys.sql",
                "key_id IN (SELECT key_id FROM locked)",
                "SELECT key_id FROM locked UNION ALL SELECT key_id FROM made)",
            ),
        ],
        "tests/conformance/test_free_keys.py",
        "without_a_deadlock",
        database="postgres",
    ),
    Mistake(
        "a job with a free key does not hold it",
        [Text("store/sql/claim_free_keys.sql", "SET holds = key_id, fence", "SET fence")],
        "tests/conformance/test_free_keys.py",
        "held_key_waits",
        database="postgres",
    ),
    Mistake(
        "a failed job leaves the sequence that it halts",
        [Change("store.turns:free", replace("not again and not failed", "not again"))],
        "tests/conformance/test_guards.py",
        "sequence",
        database="postgres",
    ),
    Mistake(
        "the end of a job overlooks a line that began while it waited for the key",
        [
            Text(
                "store/sql/need_end.sql",
                "(ARRAY(SELECT key_id FROM freed))",
                "(ARRAY(SELECT key_id FROM freed)) AND has_line",
            )
        ],
        "tests/conformance/test_guard_turns.py",
        "just_blocked",
        database="postgres",
    ),
    Mistake(
        "the end of a job lets none of its line start",
        [Text("store/sql/need_end.sql", "WHERE locked.has_line", "WHERE NOT locked.has_line")],
        "tests/conformance/test_guards.py",
        "in_order_of_enqueue",
        database="postgres",
    ),
    Mistake(
        "the longest wait ignores one of the priorities of a queue",
        [
            Text(
                "store/sql/ready_fronts.sql",
                "ready.{rank} > line.place",
                "ready.{rank} < line.place",
            )
        ],
        "tests/integration/test_stats.py",
    ),
    Mistake(
        "on SQLite a claim takes a job that got guards after it was read",
        [
            Text("store/sql/listed_lease.sql", " AND ready.guards = 0", ""),
            Text("store/sql/listed_leave.sql", " AND ready.guards = 0", ""),
        ],
        "tests/integration/test_sqlite_claims.py",
    ),
    Mistake(
        "on SQLite a stale lease ends the one that is valid",
        [
            Text(
                "store/sql/listed_end.sql",
                "\n        AND held.lease_id = json_extract(given.value, '$[1]')",
                "",
            )
        ],
        "tests/conformance/test_leases.py",
    ),
    Mistake(
        "on SQLite a transaction does not wait for other writers",
        [
            Change(
                "store.sqlite:_try_within",
                replace("if not is_busy or time.monotonic() >= until:\n    raise", "raise"),
            )
        ],
        "tests/integration/test_sqlite_tuning.py",
    ),
    Mistake(
        "on SQLite a report of a write is taken for its commit",
        [Change("brokers.orm.wake:DataVersion._listen", replace("FIRST_LOOK_SECONDS", "None"))],
        "tests/integration/test_sqlite_wake.py",
    ),
    Mistake(
        "a deferred job is due half a second early on PostgreSQL",
        [
            Text(
                "store/sql/deferred_promote.sql",
                "* 1000000)::bigint)\n    ORDER",
                "* 1000000)::bigint + 500000)\n    ORDER",
            )
        ],
        "tests/conformance/test_claim.py",
        "due_job_does_not_make_a_later_job_ready",
        database="postgres",
    ),
    Mistake(
        "a deferred job is due half a second early on SQLite",
        [
            Change(
                "store.engines.base:Engine.move_due",
                replace("DatabaseNow()", "DatabaseNow() + 500000"),
            )
        ],
        "tests/conformance/test_claim.py",
        "due_job_does_not_make_a_later_job_ready and Orm",
    ),
    Mistake(
        "a deferred job is due half a second early on MariaDB",
        [
            Change(
                "store.engines.base:Engine.move_due",
                replace("DatabaseNow()", "DatabaseNow() + 500000"),
            )
        ],
        "tests/conformance/test_claim.py",
        "due_job_does_not_make_a_later_job_ready and Orm",
        database="mariadb",
    ),
    Mistake(
        "a deferred job is due half a second early on Redis",
        [
            Text(
                "brokers/redis/lua/common.lua",
                "'ZRANGEBYSCORE', deferred, '-inf', now_us(), 'LIMIT'",
                "'ZRANGEBYSCORE', deferred, '-inf', now_us() + 500000, 'LIMIT'",
            )
        ],
        "tests/conformance/test_claim.py",
        "due_job_does_not_make_a_later_job_ready and Redis",
        needs_redis=True,
    ),
)
