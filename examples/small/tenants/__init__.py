"""Many tenants in one queue: none of them waits for another, and none sees another's rows."""
