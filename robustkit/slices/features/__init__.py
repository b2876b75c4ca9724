"""Ask what features know: nearest neighbours, a linear probe, few images, retrieval; one record row per image."""
