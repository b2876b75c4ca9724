"""Maps to look at: galleries, maps of a user's own pictures, and maps of a segmenter's classes with their scores."""
