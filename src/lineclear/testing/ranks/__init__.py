"""Ranks of one instance in one process, and the lab of their KV layouts."""
