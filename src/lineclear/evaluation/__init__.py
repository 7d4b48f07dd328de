"""Measures a checkpoint on the real engine: answers, drafts, and what damage to the cache does to both."""
