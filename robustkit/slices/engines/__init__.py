"""Attacks as other libraries make them: `--engine pyautoattack` and the like."""
