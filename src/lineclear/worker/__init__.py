"""The worker process: one engine, driven by the messages of one gateway."""
