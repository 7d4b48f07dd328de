"""The proof that tiers do not change tokens, and that each of their guards is needed."""
