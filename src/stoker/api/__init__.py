"""The HTTP API: ``path("stoker/", include("stoker.api.urls"))``.

It needs django-ninja, which ``pip install 'django-stoker[api]'`` brings. Nothing else imports it.
"""
