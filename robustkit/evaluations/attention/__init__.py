"""Evaluate what attention heads do under each condition: logits, norms, entropy, and their flags."""
