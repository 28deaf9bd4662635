"""One file for each page, with what can be done there."""
