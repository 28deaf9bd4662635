"""Workflows: made of nodes, stored as steps, looked at and steered. What moves them on while they
run stands in stoker.following."""
