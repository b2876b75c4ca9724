"""Make an index of all runs in a folder: a page that is opened as a file, and a server for this machine alone."""
