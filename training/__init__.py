"""Trains the bundled model `lineclear-tiny` from nothing: tokenizer, corpus, network, loop, export.

Nothing in `lineclear` imports this package; it needs torch and tokenizers and is run as `python -m training.<step>`.
"""
