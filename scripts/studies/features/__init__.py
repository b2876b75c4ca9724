"""What features know: neighbours, probes and few images on checkpoints without their heads."""
