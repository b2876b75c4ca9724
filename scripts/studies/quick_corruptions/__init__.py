"""Choose the quick sets of corruptions, and put newer sets beside ImageNet-C."""
