"""The commands of `st-rl`, one file each."""
