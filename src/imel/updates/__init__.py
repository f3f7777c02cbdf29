"""How a rollout changes a policy: one update for each family."""
