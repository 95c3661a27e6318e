"""`python -m st_rl` runs `st-rl`."""

from st_rl.cli import exit_process, main

if __name__ == "__main__":
    exit_process(main())
