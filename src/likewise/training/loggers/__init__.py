"""Loggers: what a training shows in TensorBoard, Weights & Biases and MLflow, while it goes on."""
