"""What follows when a job has ended: the steps after it, and its hooks. In the transaction that
records the end, so that none is lost and none comes twice."""
