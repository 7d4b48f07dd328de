"""The HTTP process: it owns text, chooses workers, streams answers and ends every request exactly once."""
