"""How fast Stoker is, next to hand-written SQL that does the same durable work."""
