"""Optimisers and regularisers that keep queries, keys and attention logits in check during training."""
