"""QuacK's experiment in small: which stabilisers keep a language model in training, at which rates."""
