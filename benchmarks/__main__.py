"""Measure Stoker next to hand-written SQL: `make bench`, or `python -m benchmarks`.

Each of a number of rounds measures both, one after the other, on the same database, so that what
disturbs a machine for a while disturbs both. See README.md for what is measured.
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.databases import NAMES, Database, database
from benchmarks.report import table
from tests.servers.private import ServerUnavailableError


def main() -> int:
    """Measure on each database, and print the tables. Return 1 if something went wrong."""
    arguments = _arguments()
    found: dict[str, Any] = {}
    for name in arguments.databases:
        try:
            with database(name) as one:
                found[name] = _measure(one, arguments)
        except ServerUnavailableError as missing:
            print(f"{name}: {missing}", file=sys.stderr)
            return 1
    if arguments.json:
        print(json.dumps({"jobs": arguments.jobs, "databases": found}, indent=1))
    else:
        print("\n\n".join(["", *(table(one, arguments.jobs) for one in found.values())]))
    return int(any(one["locked"] for one in found.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--jobs", type=_positive, default=os.environ.get("JOBS") or "20000")
    parser.add_argument("--rounds", type=_positive, default=os.environ.get("ROUNDS") or "5")
    parser.add_argument(
        "--databases",
        type=_names,
        default=os.environ.get("DATABASES") or "postgres sqlite",
        help=f"some of {', '.join(NAMES)} (default: postgres sqlite)",
    )
    parser.add_argument("--json", action="store_true", help="print each round's numbers as JSON")
    return parser.parse_args()


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _names(text: str) -> list[str]:
    names = text.replace(",", " ").split()
    if not names or not set(names) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"{text!r}: write some of {', '.join(NAMES)}")
    return names


def _measure(one: Database, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.measure", one.name]
    command += ["--jobs", str(arguments.jobs), "--rounds", str(arguments.rounds)]
    if one.server_pid is not None:
        command += ["--server-pid", str(one.server_pid)]
    environment = {**os.environ, "STOKER_BENCH_DATABASE": json.dumps(one.entry)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


sys.exit(main())
