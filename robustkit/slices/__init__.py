"""What stands on top of the core: tasks, families, commands, training, MAITE. A folder each, which nobody imports."""
