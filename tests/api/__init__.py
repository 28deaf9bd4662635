"""The HTTP API, through Django's own client."""
