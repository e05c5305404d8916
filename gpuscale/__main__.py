"""Entry point of `python -m gpuscale`, for machines without the console script."""

import sys

from gpuscale.cli import main

if __name__ == "__main__":
    sys.exit(main())
