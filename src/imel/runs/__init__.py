"""A run and its directory: plan, training, logs, evaluation, and finding it all again."""
