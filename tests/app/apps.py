"""The configuration of the tests' app. Its label is not `app`, which others might use."""

import os

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """The app with the tasks and models of the tests."""

    name = "tests.app"
    label = "testapp"

    def ready(self) -> None:
        """Start the faults that a test asked for."""
        if names := os.environ.get("STOKER_TEST_MISCHIEF"):
            from tests.app import mischief

            mischief.begin(names)
