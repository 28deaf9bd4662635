"""URLs to scrape Prometheus metrics: ``path("metrics", include("stoker.reporters.urls"))``."""

from __future__ import annotations

from django.urls import path

from .prometheus import metrics

app_name = "stoker-metrics"
urlpatterns = [path("", metrics, name="metrics")]
