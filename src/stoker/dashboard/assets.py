"""The style sheet and the script, served from the package.

Their URLs change with their content, so browsers may cache them for ever.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse

TYPES = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "keys.js": "text/javascript; charset=utf-8",
    "palette.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@login_not_required
def show(_request: HttpRequest, version: str, name: str) -> HttpResponse:
    """Return the file of that name."""
    if name not in TYPES:
        raise Http404(name)
    response = HttpResponse(content(name), content_type=TYPES[name])
    is_kept = version == version_of(name)
    response.headers["Cache-Control"] = (
        "public, max-age=31536000, immutable" if is_kept else "no-cache"
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


@cache
def content(name: str) -> bytes:
    return files("stoker.dashboard").joinpath("files", name).read_bytes()


@cache
def version_of(name: str) -> str:
    """Return a text that changes with the content of the file."""
    return hashlib.sha256(content(name)).hexdigest()[:12]
