"""Public formats of traces and logs: each a parser from lines, which somebody else has read, to events."""
