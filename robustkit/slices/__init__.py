"""What stands on top of the core: tasks, families, commands, readers of checkpoints, training. A folder each, which
nobody imports."""
