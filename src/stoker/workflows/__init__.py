"""Workflows: nodes are stored as steps, which advance when their jobs end."""
