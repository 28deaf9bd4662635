#!/usr/bin/env python
"""Django's command line for this project."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # The project is the package `examples.feeds`, in whatever folder this is called.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.feeds.settings")

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
