"""Language models under changed words, by two protocols."""
