"""Types: how type checkers see code that uses Stoker."""
