"""The family that scores checkpoints on adversarial images that were found for others."""
