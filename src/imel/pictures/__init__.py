"""Figures of a run: its learning curve, its policy, its updates, and what its memories show."""
