"""No pages yet: Django wants a URL configuration to be named."""

from django.urls import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []
