"""What is measured on the day a GPU is there, in steps that stand alone; see `__main__`."""
