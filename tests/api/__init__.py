"""The HTTP API, through Django's test client."""
