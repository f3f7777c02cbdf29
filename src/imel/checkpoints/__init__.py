"""Files: models, policies and runs, without pickle."""
