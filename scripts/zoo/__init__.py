"""The shipped checkpoints: their recipes, their training, their logs and their model card."""
