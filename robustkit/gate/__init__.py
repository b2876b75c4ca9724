"""Hold a run against rules, and say what passes, fails, or cannot be told, for continuous integration."""
