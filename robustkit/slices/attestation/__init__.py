"""Statements of in-toto about checkpoints that met a policy: written, and compared with files."""
