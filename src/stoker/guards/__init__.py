"""Rules over the store: who may do what only one may do."""
