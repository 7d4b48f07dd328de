"""Faults as parts of lab workers: each is put in by a constructor, and proves that it fired."""
