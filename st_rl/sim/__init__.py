"""The built-in simulation: robots (MJCF), backends (MuJoCo on the CPU), tasks."""
