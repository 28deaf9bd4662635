"""Old names on the new verbs: what projects of other task queues need to move over."""
