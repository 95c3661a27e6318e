"""Reference motions."""
