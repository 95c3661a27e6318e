"""`python -m st_rl` runs `st-rl`."""

import sys

from st_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
