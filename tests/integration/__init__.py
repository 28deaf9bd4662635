"""Parts together, on a real database, without a cluster."""
