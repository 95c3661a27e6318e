"""Compare a log of a robot with the golden run of its kit: st-rl deploy compare KIT LOG.npz."""
