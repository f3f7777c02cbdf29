"""Experience: rollouts, memory, normaliser, advantages, critic."""
