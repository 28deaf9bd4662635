"""Parts of the demo: a server of feeds, real processes, a terminal, and the expected results."""
