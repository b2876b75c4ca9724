"""One folder per task (classification, segmentation): record columns, scoring, tables, figures."""
