"""Evaluate what a model looks at: explanation maps, their scores beside controls, galleries."""
