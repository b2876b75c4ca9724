"""Small ViTs trained where standard attention breaks, and the page of the stabilisers."""
