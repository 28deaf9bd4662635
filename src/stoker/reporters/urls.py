"""``path("metrics", include("stoker.reporters.urls"))``: what Prometheus scrapes."""

from __future__ import annotations

from django.urls import path

from .prometheus import metrics

app_name = "stoker-metrics"
urlpatterns = [path("", metrics, name="metrics")]
