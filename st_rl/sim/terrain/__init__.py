"""Height fields, parkour tracks, terrain curriculum and the depth camera."""
