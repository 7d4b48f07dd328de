"""Settings of all tests."""

from hypothesis import settings

# How long an example may take is a timed assertion, which says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
