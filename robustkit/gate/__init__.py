"""Check a run against rules, for continuous integration: what passes, what fails, and what stays undecided."""
