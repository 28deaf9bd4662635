"""What type checkers make of code that uses Stoker."""
