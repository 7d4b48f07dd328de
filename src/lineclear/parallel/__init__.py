"""Context parallelism: ranks that compute one plan together, and share its KV."""
