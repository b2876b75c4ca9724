"""Turn records into results: the summary, paired comparison, published figures."""
