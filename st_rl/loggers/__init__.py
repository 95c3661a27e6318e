"""Where the numbers of a training go: TensorBoard, CSV, wandb, neptune and the console."""
