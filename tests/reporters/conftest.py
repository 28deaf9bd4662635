"""A cluster with all reporters, and a receiver of their reports."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import conftest as of_clusters
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.reporters.receiver import Receiver, receiving
from tests.servers.private import free_port

db, shared_database, patience = of_clusters.db, of_clusters.shared_database, of_clusters.patience

TOKEN = "for scraping only"


PORT = free_port()


def reporters(receiver: Receiver) -> dict[str, dict[str, Any]]:
    """Return the value for REPORTERS."""
    return {
        "tests.app.reported.Broken": {},
        "sentry": {"dsn": receiver.dsn, "traces_sample_rate": 1.0, "shutdown_timeout": 1},
        "rollbar": {
            "access_token": "token",
            "environment": "tests",
            "endpoint": f"{receiver.url}/api/1/",
        },
        "prometheus": {"port": PORT, "token": TOKEN},
        "opentelemetry": {"set_up": "tests.app.reported.set_up_telemetry"},
    }


@pytest.fixture(scope="package")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def cluster(
    receiver: Receiver,
    shared_database: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProcessCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("cluster"),
        environment={
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        },
        TIMEOUT_GRACE_SECONDS=5,
        REPORTERS=reporters(receiver),
    ) as cluster:
        cluster.wait_for_crew()
        wait_for(_answers, cluster.tail)
        yield cluster


def _answers() -> bool:
    """Return whether the cluster's port for Prometheus is open."""
    with socket.socket() as visitor:
        return visitor.connect_ex(("127.0.0.1", PORT)) == 0
