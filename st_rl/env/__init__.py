"""The contract of a vectorised environment, its checker and adapters."""
