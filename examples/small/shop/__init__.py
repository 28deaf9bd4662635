"""A shop: an order and its job are one transaction, and each order is charged exactly once."""
