"""`RidgePolicy`: natural policy gradients on random features, in closed form."""
