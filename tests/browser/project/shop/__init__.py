"""What the dashboard tells of in the tests, and in the pictures of the documentation."""
