"""Logging of a training: TensorBoard, CSV, wandb, neptune and the console."""
