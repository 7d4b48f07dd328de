"""Drafting: which drafts a verify keeps, and what is counted."""
