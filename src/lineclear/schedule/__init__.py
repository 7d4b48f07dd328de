"""What to compute in each step, and what its results mean."""
