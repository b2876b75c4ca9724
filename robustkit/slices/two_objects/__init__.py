"""Ask for each of two objects in an image: how much of a map lies in the one that was asked for."""
