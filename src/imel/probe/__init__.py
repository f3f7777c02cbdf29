"""Interpolators judged apart from returns, on the memories of a run."""
