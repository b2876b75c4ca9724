"""Make tables for papers from finished runs."""
