"""The family of attacks that look for the smallest change that misleads a model."""
