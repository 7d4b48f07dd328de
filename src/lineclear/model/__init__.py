"""GLM-MoE-DSA: configuration, checkpoint, and the forward and draft passes."""
