"""Reference motions on the robots of the simulation: leg geometry, kinematics of clips, recording and rendering."""
