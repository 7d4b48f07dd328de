"""The proof that the KV sanitizer finds what is planted, names whose it was, and reports nothing of clean runs."""
