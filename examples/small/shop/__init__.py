"""A shop: an order and its job are one transaction, and a charge happens exactly once."""
