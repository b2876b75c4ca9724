"""Classify multivariate time series: one record row per series."""
