"""The HTTP API: ``path("stoker/", include("stoker.api.urls"))``.

It needs django-ninja: ``pip install 'django-stoker[api]'``. Nothing else in Stoker imports it.
"""

try:
    import ninja  # noqa: F401 - to say what is missing
except ImportError as error:
    raise ModuleNotFoundError(
        "stoker.api needs django-ninja: pip install 'django-stoker[api]'."
    ) from error
