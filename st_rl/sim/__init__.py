"""The built-in simulation: robots (MJCF), backends (MuJoCo on the CPU, MuJoCo Warp on a GPU), tasks."""
