"""Evidence that attacks were not misled: figures from a model's gradients and answers, and what they speak against."""
