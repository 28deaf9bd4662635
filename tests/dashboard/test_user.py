"""The menu of the signed-in user: the admin and signing out."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import include, path

from tests.app import tasks
from tests.dashboard import urls
from tests.dashboard.conftest import PREFIX, signed_in

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def answer(_request: Any, **_: Any) -> HttpResponse:
    return HttpResponse("")


ADMIN = (
    [
        path("", answer, name="index"),
        path("logout/", answer, name="logout"),
        path("job/<path:object_id>/change/", answer, name="stoker_job_change"),
        path("schedule/add/", answer, name="stoker_schedule_add"),
        path("schedule/<path:object_id>/change/", answer, name="stoker_schedule_change"),
    ],
    "admin",
)
"""The views of an admin that the dashboard links."""


def test_page_of_a_project_without_sign_out_shows_only_the_user(anna: Client) -> None:
    text = anna.get(PREFIX).content.decode()
    assert "Signed in as <b>anna</b>" in text
    assert "Sign out" not in text
    assert "Open in the admin" not in text


def test_refused_page_shows_the_user(who_may: Callable[..., Client]) -> None:
    response = who_may("view_cluster").get(f"{PREFIX}jobs/")
    assert response.status_code == 403
    assert "Signed in as <b>user 0</b>" in response.content.decode()


def test_sign_out_posts_to_the_view_of_the_site_before_that_of_the_admin(
    anna: Client, settings: Any
) -> None:
    admin = path("admin/", include(ADMIN))
    settings.ROOT_URLCONF = (*urls.urlpatterns, admin)
    assert '<form method="post" action="/admin/logout/">' in anna.get(PREFIX).content.decode()
    settings.ROOT_URLCONF = (*urls.urlpatterns, admin, path("out/", answer, name="logout"))
    text = anna.get(PREFIX).content.decode()
    assert '<form method="post" action="/out/">' in text
    assert f'<input type="hidden" name="next" value="{PREFIX}">' in text


def test_pages_link_the_same_page_of_the_admin_for_staff(
    anna: Client, who_may: Callable[..., Client], settings: Any
) -> None:
    settings.ROOT_URLCONF = (*urls.urlpatterns, path("admin/", include(ADMIN)))
    job = tasks.add.enqueue(1, 2)
    text = anna.get(f"{PREFIX}jobs/{job.id}/").content.decode()
    assert f'href="/admin/job/{job.id}/change/"' in text
    for page in ("", "jobs/", "audit/", f"jobs/{uuid4()}/"):
        assert 'href="/admin/' in anna.get(PREFIX + page).content.decode(), page
    assert 'href="/admin/' not in who_may("view_job").get(PREFIX).content.decode()


def test_user_name_is_escaped() -> None:
    client = signed_in(User.objects.create_superuser("<b>anna"))
    assert "<b>&lt;b&gt;anna</b>" in client.get(PREFIX).content.decode()
