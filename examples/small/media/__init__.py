"""A media pipeline: a workflow with parallel steps and progress."""
