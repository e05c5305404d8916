"""Entry point of `python -m gpuscale`, for use if the `gpuscale` command is not installed."""

import sys

from gpuscale.cli import main

if __name__ == "__main__":
    sys.exit(main())
