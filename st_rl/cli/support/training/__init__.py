"""What a training on the command line consists of: its settings, its start, its session and its ranks."""
