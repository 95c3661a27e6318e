"""Files of earlier versions can still be read."""
