"""What ships with the package: a generated data set (`shapes`) and checkpoints trained on it."""
