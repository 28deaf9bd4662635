"""The API and the dashboard under the same prefix."""

import re
from typing import Any
from uuid import uuid4

import pytest
from django.urls import include, path, resolve

from stoker.api.urls import api
from stoker.dashboard.urls import urlpatterns as pages

BOTH = (
    path("stoker/", include("stoker.dashboard.urls")),
    path("stoker/", include("stoker.api.urls")),
)
ORDERS = {"dashboard first": BOTH, "API first": BOTH[::-1]}


@pytest.mark.parametrize("order", ORDERS)
def test_urls_of_api_and_dashboard_reach_their_own_views(order: str) -> None:
    found: Any
    for one in pages:
        address = re.sub(r"<[^>]+>", str(uuid4()), str(one.pattern))
        found = resolve(f"/stoker/{address}", urlconf=ORDERS[order])
        assert (found.namespace, found.url_name) == ("stoker-dashboard", one.name), address
    for route in api.get_openapi_schema(path_prefix="/stoker/")["paths"]:
        address = re.sub(r"{[^}]+}", str(uuid4()), route)
        found = resolve(address, urlconf=ORDERS[order])
        assert found.namespace == "stoker-api", address
    for address in ("openapi.json", "docs", "jobs/1/2/3"):
        found = resolve(f"/stoker/{address}", urlconf=ORDERS[order])
        assert found.namespace == "stoker-api", address
