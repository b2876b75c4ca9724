"""Transfer: adversarial images that were found for one checkpoint, shown to the others."""
