"""Evaluate a model of time series on series as worse sensors would have measured them."""
