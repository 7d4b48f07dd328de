"""`python -m lineclear` is the `lineclear` command."""

import sys

from lineclear.cli.main import main

sys.exit(main())
