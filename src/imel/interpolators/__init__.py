"""Interpolators: models that compute values at states from a context of memories."""
