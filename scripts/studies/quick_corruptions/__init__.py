"""Choose the quick sets of corruptions, and compare newer sets with ImageNet-C."""
