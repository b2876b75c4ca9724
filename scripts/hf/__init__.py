"""Checkpoints of timm in the layout of the transformers library, and the other way round."""
