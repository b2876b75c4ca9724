"""The command line: turn words into calls."""
