"""Train classifiers of time series on two sets of the UEA archive."""
