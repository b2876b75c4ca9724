"""Estimate what an attack in stages leaves standing, from its last stages on some of the samples alone."""
