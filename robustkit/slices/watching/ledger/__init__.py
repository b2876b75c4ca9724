"""What makes logits change under an attack or a corruption, and which of it makes predictions change."""
