"""``path("stoker/", include("stoker.api.urls"))``: all of the HTTP API.

Tasks are found in the ``tasks`` modules of the installed apps, so that the exposed ones are known.
"""

from __future__ import annotations

from django.urls import URLPattern, path, re_path
from django.utils.module_loading import autodiscover_modules

try:
    import ninja  # noqa: F401 - to say what is missing
except ImportError as error:
    raise ModuleNotFoundError(
        "stoker.api needs django-ninja: pip install 'django-stoker[api]'."
    ) from error

from .access import enclosed, not_found
from .root import AREAS, api, document

autodiscover_modules("tasks")

app_name = "stoker-api"
urlpatterns = [
    path("openapi.json", enclosed(document.show), name="openapi"),
    path("docs", enclosed(document.show_page), name="docs"),
    *(
        URLPattern(one.pattern, enclosed(one.callback), one.default_args, one.name)
        for one in api.urls[0]
        if isinstance(one, URLPattern) and one.name != "api-root"
    ),
    re_path(rf"^(?:{'|'.join(AREAS)})(?:/[\s\S]*)?\Z", enclosed(not_found)),
]
