"""Servers that never answer, and a reporter that never returns, block neither jobs nor the
cluster's stop."""

import json
from pathlib import Path

import pytest

from tests.app import reported
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.cluster.ends import end_of, value_of
from tests.reporters.receiver import silence

pytestmark = [pytest.mark.usefixtures("db"), pytest.mark.sqlite, pytest.mark.slow]

FAILURES = 120
"""More than the reporters' queues hold."""


def dropped(cluster: ProcessCluster) -> list[str]:
    """Return the cluster's log messages about dropped reports."""
    lines = [line for line in cluster.text().splitlines() if line.startswith("{")]
    messages = [json.loads(line)["message"] for line in lines if line.endswith("}")]
    return [message for message in messages if "dropped" in message]


def test_jobs_and_cluster_end_while_no_server_answers(tmp_path: Path) -> None:
    with silence() as port:
        url = f"http://127.0.0.1:{port}"
        reporters = {
            "sentry": {"dsn": f"http://key@127.0.0.1:{port}/1", "traces_sample_rate": 1.0},
            "rollbar": {"access_token": "token", "endpoint": f"{url}/api/1/", "timeout": 600},
            "opentelemetry": {"set_up": "tests.app.reported.set_up_telemetry"},
            "tests.app.reported.Stuck": {},
        }
        with running_cluster(
            tmp_path,
            "--log-json",
            environment={"OTEL_EXPORTER_OTLP_ENDPOINT": url},
            WORKERS=1,
            REPORTERS=reporters,
        ) as cluster:
            cluster.wait_for_crew(workers=1)
            calls = [((f"A-{number}", "x"), {}) for number in range(FAILURES)]
            for result in reported.fail.enqueue_many(calls):
                assert end_of(result, cluster).dead_letter is not None
            for name in ("tests.app.reported.Stuck", "rollbar"):
                told = f"'{name}' cannot keep up: 1 report was"
                # The last failures are recorded before they are reported.
                wait_for(lambda told=told: any(told in one for one in dropped(cluster)))
            assert end_of(reported.crash.enqueue(), cluster).dead_letter is not None
            assert value_of(reported.succeed.enqueue(1, 2), cluster) == 3
            assert cluster.stop() == 0
