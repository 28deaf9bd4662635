"""Run the checker on each planted mistake: python -m tests.crash.planted [WORD ...]

A word selects the mistakes whose names contain it. Exits with 1 if one was not found.
"""

from __future__ import annotations

import os
import sys
import time
import traceback

from tests.crash.mistakes import MISTAKES, Mistake
from tests.crash.run import Plan, Run

FAULTS = 300
FAULTS_PER_ROUND = 10
SETTLE_SECONDS = 25.0
FOUND, NOT_FOUND, FAILED = 0, 1, 2


def main(words: list[str]) -> int:
    chosen = {
        name: one
        for name, one in MISTAKES.items()
        if not words or any(word in name for word in words)
    }
    found = 0
    for name, one in chosen.items():
        began = time.monotonic()
        code = _in_a_process_of_its_own(name, one)
        found += code == FOUND
        said = {FOUND: "found", NOT_FOUND: "NOT FOUND"}.get(code, "FAILED")
        print(f"{said}: {name} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{found} of {len(chosen)} mistakes are found")
    return 0 if found == len(chosen) > 0 else 1


def _in_a_process_of_its_own(name: str, one: Mistake) -> int:
    """Run it in a fork, because a process can set up Django only once."""
    pid = os.fork()
    if pid == 0:
        code = FAILED
        try:
            code = _run_with(name, one)
        except BaseException:  # noqa: BLE001 - this fork must not continue its parent's work
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run_with(name: str, one: Mistake) -> int:
    plan = Plan(
        broker=one.broker,
        faults=FAULTS,
        seed=1,
        faults_per_round=FAULTS_PER_ROUND,
        fault_plan=one.fault_plan,
        mistake=name,
        until=one.kinds,
        settle_seconds=SETTLE_SECONDS,
    )
    run = Run(plan)
    kinds = {finding.kind for finding in run.go()} & one.kinds
    if kinds:
        faults = sum(run.faults.counts.values())
        print(f"{name}: {', '.join(sorted(kinds))} after {faults} faults", flush=True)
    return FOUND if kinds else NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
