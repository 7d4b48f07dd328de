"""One codec for each API: bodies in, answers out."""
