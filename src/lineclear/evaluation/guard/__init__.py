"""The guard's baselines: healthy traffic on the real engine, and what is learned from it."""
