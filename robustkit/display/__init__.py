"""How anything is shown: text tables, Markdown, SVG, picture sheets. Knows no run."""
