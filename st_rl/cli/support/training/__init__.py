"""The parts of a training on the command line: its settings, its start, its session and its ranks."""
