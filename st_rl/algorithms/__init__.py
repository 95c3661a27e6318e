"""Losses, returns and the update."""
