"""Many tenants in one queue: no tenant waits for another, and no tenant sees another's rows."""
