"""Change one thing of an image, its colour, its outline or its background, and see whether the prediction flips."""
