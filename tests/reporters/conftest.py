"""One cluster that tells everybody, and what they were told."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import conftest as of_clusters
from tests.cluster.clusters import ProcessCluster, running_cluster
from tests.reporters.receiver import Receiver, receiving
from tests.servers.private import free_port

db, shared_database = of_clusters.db, of_clusters.shared_database

TOKEN = "for scraping only"


PORT = free_port()


def reporters(receiver: Receiver) -> dict[str, dict[str, Any]]:
    """As they stand under REPORTERS."""
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
        yield cluster
