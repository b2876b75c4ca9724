"""What stands on top of the core: text, time series, features, training, MAITE. A folder each, which nobody imports."""
