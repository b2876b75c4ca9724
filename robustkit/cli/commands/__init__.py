"""The commands: words into calls, no logic of their own."""
