"""Searching for settings: a declared space, a study on disk, and a confirmation on new seeds."""
