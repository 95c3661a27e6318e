"""Training loops and data collection."""
