"""Research on the product: a folder for each study with its scripts, its records and its page, README.md."""
