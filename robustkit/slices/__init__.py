"""What stands on top of the core: tasks, families, formats of checkpoints and results. A folder each, which nobody
imports."""
