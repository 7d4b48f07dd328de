"""Tools for tests, shipped so that users can test with them too: an explorer of all interleavings, and its models."""
