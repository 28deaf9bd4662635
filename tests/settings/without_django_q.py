"""The settings of another module, without the app for projects that come from Django Q."""

import os
from importlib import import_module

_base = import_module(os.environ.get("STOKER_TEST_BASE_SETTINGS", "tests.settings.sqlite"))
globals().update({name: value for name, value in vars(_base).items() if name.isupper()})

INSTALLED_APPS = [one for one in _base.INSTALLED_APPS if one != "stoker.contrib.django_q"]
