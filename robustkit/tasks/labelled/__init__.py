"""What all tasks share whose samples have one class each: records, scores, tables, figures."""
