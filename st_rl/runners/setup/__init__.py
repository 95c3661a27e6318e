"""From a training configuration and an environment to the algorithm that a runner trains."""
