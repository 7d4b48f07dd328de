"""The exit codes of `lineclear`; 0 is success, and 1 is any error that has no code of its own."""

EXIT_CRASH_LOOP = 1
"""A process of the service kept dying."""

EXIT_USER_ERROR = 2
"""The user asked for something that cannot be; trying again would change nothing."""

EXIT_ORPHANED = 3
"""A gateway or worker whose supervisor went away."""

EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C before it was done, as shells report it."""
