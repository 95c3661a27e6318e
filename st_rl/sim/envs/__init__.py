"""The step loop of simulated tasks, and the bases that tasks share."""
