"""The commands: they parse their words and call, without logic of their own."""
