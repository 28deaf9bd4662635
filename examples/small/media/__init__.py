"""A media pipeline: a workflow of steps side by side, with progress."""
