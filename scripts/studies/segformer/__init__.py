"""A SegFormer of transformers on street scenes, trained from its config."""
