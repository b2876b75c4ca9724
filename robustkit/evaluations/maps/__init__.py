"""Evaluate what a model looks at: explanation maps, their scores next to controls, galleries."""
