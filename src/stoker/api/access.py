"""Who may call: users with the permissions that a route names, by session or by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings as django_settings
from django.http import HttpRequest
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from stoker.api_settings import api_settings

from .problems import Refusal


class SessionUser(AuthBase):
    """A user who is signed in to the site. Calls that change something need the CSRF token, in the
    header X-CSRFToken."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = django_settings.SESSION_COOKIE_NAME
    openapi_description = "Signed in to the site; unsafe methods need the header X-CSRFToken."

    def __init__(self, permissions: Sequence[str]) -> None:
        super().__init__()
        self.permissions = tuple(permissions)

    def __call__(self, request: HttpRequest) -> Any:
        """The user; None = nobody is signed in.

        Raises:
            Refusal: the CSRF token or a permission is missing.
        """
        if "Authorization" in request.headers or not api_settings().session:
            return None
        user = getattr(request, "user", None)
        if user is None or not user.is_authenticated or not user.is_active:
            return None
        if check_csrf(request) is not None:
            raise Refusal(403, "The CSRF token is missing or wrong: send it as X-CSRFToken.")
        return permitted(user, self.permissions)


class TokenUser(AuthBase):
    """The user whose token it is, says ``TOKEN_USER`` of ``STOKER_API``."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, permissions: Sequence[str]) -> None:
        super().__init__()
        self.permissions = tuple(permissions)

    def __call__(self, request: HttpRequest) -> Any:
        """The user; None = it is nobody's token.

        Raises:
            Refusal: a permission is missing.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        user = api_settings().find_user_of(token.strip())
        if user is None or not user.is_authenticated or not user.is_active:
            return None
        return permitted(user, self.permissions)


def permitted(user: Any, permissions: Sequence[str]) -> Any:
    """The user.

    Raises:
        Refusal: he has not all of these permissions.
    """
    for permission in permissions:
        if not user.has_perm(permission):
            raise Refusal(403, f"You need the permission {permission!r} for this.")
    return user


def name_of(request: HttpRequest) -> str:
    """Who calls, as histories keep it."""
    return str(request.auth.get_username())[:150]  # type: ignore[attr-defined] # ninja sets it
