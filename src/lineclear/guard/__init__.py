"""The guard: judges from draft acceptance and self-repetition whether a running sequence's state is broken."""
