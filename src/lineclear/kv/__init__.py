"""Where KV lives: the block pool, block tables, the prefix tree, and sizes in bytes."""
