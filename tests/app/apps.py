"""The app's name: `app` alone would be a label that is easily taken."""

import os

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """The app that tests enqueue jobs of."""

    name = "tests.app"
    label = "testapp"

    def ready(self) -> None:
        """Begin what a test asked for."""
        if names := os.environ.get("STOKER_TEST_MISCHIEF"):
            from tests.app import mischief

            mischief.begin(names)
