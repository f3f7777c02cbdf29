"""Environments: making, stepping, replaying and playing them."""
