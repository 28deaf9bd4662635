"""What tests/test_docs.py needs to read pages, follow them, and move a job as they say."""
