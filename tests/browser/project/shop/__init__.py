"""The project that the tests show, also in the pictures of the documentation."""
