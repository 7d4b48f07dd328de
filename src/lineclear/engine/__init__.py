"""The engine: KV store, batch preparation, sampling, one step."""
