"""The built-in simulation: robots, backends and tasks."""
