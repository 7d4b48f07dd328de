"""Settings of all tests."""

import signal

from hypothesis import settings

# How long an example may take is a timed assertion, which says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Programs inherit that Ctrl-C is ignored, which is how a shell starts what it runs in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
