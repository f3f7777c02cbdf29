"""The paper's policies: interpolators of improved memories."""
