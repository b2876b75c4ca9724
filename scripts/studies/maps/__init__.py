"""What maps are worth next to controls that do not look at the image."""
