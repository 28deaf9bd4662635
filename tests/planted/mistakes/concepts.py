"""Mistakes in guards, locks, schedules and workflows."""

from tests.planted.mistake import Change, Mistake
from tests.planted.operations import drop, drop_keyword, drop_operand, negate, replace

MISTAKES = (
    Mistake(
        "the starts of a rate are forgotten before its period has ended",
        [
            Change(
                "models.guard_key:GuardKeyQuerySet.forget",
                replace("keys.keys() - counting", "keys.keys()"),
            )
        ],
        "tests/conformance/test_rates.py",
    ),
    Mistake(
        "a tick is fired before it is due",
        [Change("schedules.fire:Firing._fire", replace("row.due_us > now", "not now"))],
        "tests/integration/test_schedules.py",
        "due_tick_enqueues_one_job",
    ),
    Mistake(
        "a tick that is there already is fired again",
        [
            Change(
                "schedules.fire:Firing._fire",
                replace(
                    "insert_ticks(self._ticks, progress.ticks)",
                    "self._ticks.bulk_create(progress.ticks, ignore_conflicts=True)",
                ),
            )
        ],
        "tests/integration/test_schedules.py",
        "not_fired_again",
    ),
    Mistake(
        "of a time that comes twice, the second is taken",
        [
            Change(
                "values.cron:instant_of",
                replace("wall.replace(tzinfo=zone, fold=0)", "wall.replace(tzinfo=zone, fold=1)"),
            )
        ],
        "tests/unit/schedules/test_rules.py",
    ),
    Mistake(
        "an old edition of the code overrules the newest",
        [
            Change(
                "schedules.declare:Declaring.sync",
                replace("alive[:1] != [self._digest]", "not alive"),
            )
        ],
        "tests/integration/test_declared_schedules.py",
        "old_edition_does_not_undo_changes_during_rolling_deploy",
    ),
    Mistake(
        "a group is over though members are open",
        [
            Change(
                "workflows.advance:Advance._complete",
                replace("members.filter(state__in=OPEN)", "members.filter(state__in=())"),
            )
        ],
        "tests/workflows/test_flow.py",
    ),
    Mistake(
        "steps that an interrupted run has added are part of the workflow",
        [
            Change(
                "workflows.advance:Advance._adopt",
                drop_keyword("added.filter(cause=run_id_of(ended.lease))", "cause"),
            )
        ],
        "tests/workflows/test_batches.py",
        "added",
    ),
    Mistake(
        "steps that a job has added are lost if the workflow is cancelled meanwhile",
        [
            Change(
                "workflows.advance:Advance._adopt", replace("State.CANCELLED", "State.SUCCESSFUL")
            )
        ],
        "tests/workflows/test_resume.py",
        "added_while",
    ),
    Mistake(
        "a step continues each time its end is recorded",
        [
            Change(
                "workflows.advance:Advance.record",
                replace("ours.filter(state=State.ENQUEUED)", "ours"),
            )
        ],
        "tests/workflows/test_life.py",
        "recorded_again",
        needs_redis=True,
    ),
    Mistake(
        "on_error is not called for a step that ends together with its parent",
        [Change("workflows.advance:Advance.go_on", drop("wave += self._call_back(wave)"))],
        "tests/workflows/test_batches.py",
        "on_error",
    ),
    Mistake(
        "two concurrent retries of a workflow requeue the same job",
        [
            Change(
                "workflows.control:_enqueue_again",
                replace(
                    "[messages[old] for old in messages if old in reopened]",
                    "list(messages.values())",
                ),
            )
        ],
        "tests/workflows/test_batches.py",
        "retries",
    ),
    Mistake(
        "a requeue that is taken back leaves its workflow running",
        [
            Change(
                "workflows.follow:record_taken_back",
                drop("reassign(alias, ours)"),
            )
        ],
        "tests/integration/test_undo_requeue.py",
        "workflow",
    ),
    Mistake(
        "upkeep frees a sequence whose dead letter is open",
        [Change("guards.sweep:forget_needs", replace("row.pk not in halting", "True"))],
        "tests/integration/test_dead_letters.py",
        "upkeep_continues_sequence_whose_dead_letter_is_closed",
    ),
    Mistake(
        "a discarded dead letter halts its sequence for ever",
        [Change("guards.sequences:resume_after", drop("Need.objects.using(alias).remove(_)"))],
        "tests/integration/test_dead_letters.py",
        "halted_sequence_continues_after_discard",
    ),
    Mistake(
        "a sequence starts out of its order",
        [Change("guards.admission:_Admission._may_start", replace("self._is_first(need)", "True"))],
        "tests/conformance/test_guards.py",
        "sequence_keeps_its_order_whatever_the_priority",
    ),
    Mistake(
        "two jobs of a sequence run at once",
        [
            Change(
                "guards.admission:_Admission._may_start",
                replace("holders <= {place.job_id}", "True"),
            )
        ],
        "tests/conformance/test_guards.py",
        "sequence_waits_for_the_retry",
    ),
    Mistake(
        "a limit admits one more",
        [
            Change(
                "guards.admission:_Admission._may_start",
                replace(
                    "len(holders - {place.job_id}) < key.room",
                    "len(holders - {place.job_id}) <= key.room",
                ),
            )
        ],
        "tests/conformance/test_guards.py",
        "lock_runs_one_job_at_a_time_in_order_of_enqueue",
    ),
    Mistake(
        "a job overtakes those who wait for its limit",
        [
            Change(
                "guards.admission:_Admission._is_another_ahead",
                replace("head < (place.rank, place.job_id)", "head > (place.rank, place.job_id)"),
            )
        ],
        "tests/conformance/test_guards.py",
        "lock_runs_one_job_at_a_time_in_order_of_enqueue",
    ),
    Mistake(
        "a limit that is busy does not skip",
        [
            Change(
                "guards.admission:_Admission.decide",
                replace("refusal.on_busy == 'skip'", "refusal.on_busy == ''"),
            )
        ],
        "tests/conformance/test_guards.py",
        "busy_guard_with_on_busy_skip_refuses_the_job",
    ),
    Mistake(
        "a limit counts no place",
        [
            Change(
                "guards.admission:_Admission._enter",
                drop("self._holders[need.key_id].add(place.job_id)"),
            )
        ],
        "tests/conformance/test_guards.py",
        "lock_runs_one_job_at_a_time_in_order_of_enqueue",
    ),
    Mistake(
        "a claim takes more rated jobs than it has permits for",
        [Change("guards.admission:_Admission._enter", drop("self._rated_left -= 1"))],
        "tests/conformance/test_rates.py",
        "rate_set_to_zero_starts_nothing",
    ),
    Mistake(
        "another owner drops a lock",
        [
            Change(
                "locks.stores.database:DatabaseCacheLocks._drop",
                replace(
                    "'DELETE FROM {table} WHERE cache_key = %s AND value LIKE %s'",
                    "'DELETE FROM {table} WHERE cache_key = %s AND value <> %s'",
                ),
            )
        ],
        "tests/locks/test_database.py",
        "database_cache_takes_renews_steals_and_drops_locks",
    ),
    Mistake(
        "a lock in the cache's table is replaced though it was renewed",
        [
            Change(
                "locks.stores.database:DatabaseCacheLocks._replace",
                replace("_is_too_old(held, claim.steal_after_seconds)", "True"),
            )
        ],
        "tests/locks/test_database.py",
        "lock_expired_only_by_the_readers_clock_is_not_taken",
    ),
    Mistake(
        "a lock in the cache's table is stolen though nobody asked for that",
        [Change("locks.stores.database:_is_too_old", replace("False", "True"))],
        "tests/locks/test_places.py",
        "held_lock_is_refused_to_another",
    ),
    Mistake(
        "a resumed schedule fires the ticks of its pause",
        [Change("schedules.rows:resumed_state", replace("later_state(row, now_us)", "{}"))],
        "tests/integration/test_schedules.py",
        "paused_schedule_does_not_fire_until_resumed",
    ),
    Mistake(
        "a schedule that code declares is changed by hand",
        [Change("schedules.service:_refuse_declared", negate("row.is_declared"))],
        "tests/integration/test_schedules.py",
        "upsert_keeps_the_next_tick_unless_the_rule_changes",
    ),
    Mistake(
        "a deleted schedule leaves its ticks",
        [
            Change(
                "schedules.service:delete",
                drop("Tick.objects.using(database).filter(schedule_id=row.pk).delete()"),
            )
        ],
        "tests/integration/test_schedules.py",
        "delete",
    ),
    Mistake(
        "next_ticks goes past the end of a schedule",
        [
            Change(
                "schedules.service:_moments_of",
                drop_operand("_ and _", "end is None or found <= end"),
            )
        ],
        "tests/integration/test_schedules.py",
        "start_and_end",
    ),
    Mistake(
        "an optional step stops its chain",
        [
            Change(
                "workflows.advance:Over.lets_go_on",
                drop_operand("_ or self.step.is_optional", "self.step.is_optional"),
            )
        ],
        "tests/workflows/test_flow.py",
        "failed_optional_step_does_not_stop_its_chain",
    ),
    Mistake(
        "a chain goes on after a failure",
        [
            Change(
                "workflows.advance:Advance._in_chains",
                replace(
                    "{over.step.position + 1 for _, over in going_on.values()}",
                    "{over.step.position + 2 for _, over in going_on.values()}",
                ),
            )
        ],
        "tests/workflows/test_flow.py",
        "chain_passes_each_result_to_the_next_step",
    ),
    Mistake(
        "a group fails with optional members",
        [
            Change(
                "workflows.advance:Advance._complete",
                drop_keyword(
                    "members.filter(parent_id__in=_, state__in=_, is_optional=_)", "is_optional"
                ),
            )
        ],
        "tests/workflows/test_flow.py",
        "group_with_on_failure_continue_succeeds_despite_a_failed_member",
    ),
    Mistake(
        "a workflow that fails undoes nothing",
        [
            Change(
                "workflows.advance:Advance._fail",
                replace("self._next_undo(step, None) if may_undo else None", "None"),
            )
        ],
        "tests/workflows/test_flow.py",
        "failed_chain_undoes_finished_steps_in_reverse",
    ),
    Mistake(
        "undo begins with the first step",
        [Change("workflows.advance:Advance._next_undo", replace("max(below)", "min(below)"))],
        "tests/workflows/test_flow.py",
        "failed_chain_undoes_finished_steps_in_reverse",
    ),
    Mistake(
        "the end of a workflow is told to nobody",
        [Change("workflows.advance:Advance._climb", drop("self._workflows.end(...)"))],
        "tests/workflows/test_flow.py",
        "chain_passes_each_result_to_the_next_step",
    ),
    Mistake(
        "members of a group that fails fast go on",
        [
            Change(
                "workflows.advance:Advance._stop",
                replace("self._stopper.stop_below(group.pk, cause)", "False"),
            )
        ],
        "tests/workflows/test_flow.py",
        "failed_member_cancels_the_others_with_on_failure_stop",
    ),
    Mistake(
        "chains that stop with their group are not undone",
        [
            Change(
                "workflows.advance:Stopper.stop_below",
                replace("State.UNDOING if must_undo else State.CANCELLED", "State.CANCELLED"),
            )
        ],
        "tests/workflows/test_stop.py",
    ),
    Mistake(
        "nested groups start all their members at once",
        [Change("workflows.start:Starter._members", drop("self._left -= sum(more.values())"))],
        "tests/workflows/test_window.py",
        "transaction_starts_no_more_jobs_than_the_window",
    ),
    Mistake(
        "a group stands still if its turn comes when no job is left",
        [
            Change(
                "workflows.start:Starter.next_members", replace("max(shares[pk], 1)", "shares[pk]")
            )
        ],
        "tests/workflows/test_window.py",
        "each_group_continues_when_members_of_many_end",
    ),
    Mistake(
        "fencing numbers do not grow",
        [Change("guards.admission:_Admission._give_fence", replace("fence + 1", "fence"))],
        "tests/conformance/test_guards.py",
        "one_claim_admits_have_growing_fencing_numbers",
    ),
    Mistake(
        "a changed limit wakes no cluster",
        [Change("guards.limits:override_limit", drop("after_commit(...)"))],
        "tests/guards/test_limits.py",
        "changed_limit_wakes_clusters_after_the_commit",
    ),
    Mistake(
        "a changed limit wakes clusters before the commit",
        [
            Change(
                "guards.limits:override_limit",
                replace(
                    "after_commit(alias, lambda: broker.wake_up(queues))", "broker.wake_up(queues)"
                ),
            )
        ],
        "tests/guards/test_limits.py",
        "changed_limit_wakes_clusters_after_the_commit",
    ),
    Mistake(
        "a job that found its lock busy is looked at again at once",
        [
            Change(
                "guards.admission:_Admission._turn_away",
                replace("self._now_us + refusal.retry_us", "self._now_us"),
            )
        ],
        "tests/conformance/test_guards.py",
        "not_claimed_before_its_delay_ends",
    ),
    Mistake(
        "a requeued job does not get the place of the failed one in its sequence",
        [Change("guards.sequences:pass_on", drop("update_by_key(...)"))],
        "tests/integration/test_undo_requeue.py",
        "undo_keeps_a_sequence_halted",
    ),
    Mistake(
        "the sweep frees the place of a failed job that halts its sequence",
        [
            Change(
                "guards.sweep:_stale_places",
                replace("need.job_id in alive or need.pk in halting", "need.job_id in alive"),
            )
        ],
        "tests/conformance/test_guards.py",
        "sweep_keeps_a_sequence",
    ),
    Mistake(
        "the sweep frees the place of a job of a sequence that waits for its retry",
        [
            Change(
                "guards.sweep:_stale_places",
                replace("need.job_id in alive or need.pk in halting", "need.pk in halting"),
            )
        ],
        "tests/conformance/test_guards.py",
        "sweep_keeps_a_sequence",
    ),
    Mistake(
        "a rate that another cluster has looked at is called again",
        [
            Change(
                "guards.sweep:call_due",
                replace("key.due_us is not None and key.due_us <= now_us", "True"),
            )
        ],
        "tests/conformance/test_rates.py",
        "checked_again_after_it_is_locked",
    ),
    Mistake(
        "a changed limit calls too many jobs",
        [
            Change(
                "guards.limits:override_limit",
                replace("max(0, row.room - len(holders))", "row.room"),
            )
        ],
        "tests/guards/test_limits.py",
        "only_as_many_jobs_ready_as_fit",
    ),
    Mistake(
        "a cluster fires the schedules of another that is on time",
        [
            Change(
                "schedules.ticking:Ticks._look",
                replace("is_ours or due_us < now_us - OVERDUE_US", "True"),
            )
        ],
        "tests/integration/test_ticking.py",
    ),
    Mistake(
        "a cluster never fires overdue schedules of another",
        [
            Change(
                "schedules.ticking:Ticks._look",
                replace("is_ours or due_us < now_us - OVERDUE_US", "is_ours"),
            )
        ],
        "tests/integration/test_ticking.py",
    ),
    Mistake(
        "a schedule that has just failed is tried again at once",
        [Change("schedules.ticking:Ticks._look", replace("self._resting()", "[]"))],
        "tests/integration/test_ticking.py",
    ),
)
