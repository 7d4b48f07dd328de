"""Lineclear serves long-context language models to coding agents and keeps their answers right under load."""

__version__ = "0.1.0"
