"""Drafts of policies: rules that a run passes, with margins."""
