"""What the demo plays on: a server of feeds, real processes, a terminal, and what must come out."""
