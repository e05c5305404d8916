"""`python -m gpuscale`, for machines where the console script is not installed."""

import sys

from gpuscale.cli import main

if __name__ == "__main__":
    sys.exit(main())
