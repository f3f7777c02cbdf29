"""Grids of tasks, algorithms and seeds: run side by side, stored append-only, summarised."""
