"""Guards on a real store, in concurrent transactions."""
