"""What tests/test_docs.py needs: reading pages, following them, moving a job through its states."""
