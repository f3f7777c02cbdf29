"""Models in files: checkpoints without pickle, saving, loading, and resuming bit for bit."""
