"""Networks and policies."""
