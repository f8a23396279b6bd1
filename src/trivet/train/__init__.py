"""Training: data, the step, the loop, checkpoints, evaluation and recipes."""
