"""Turn results into pages and files for people: report.html, tables, doubts, samples."""
