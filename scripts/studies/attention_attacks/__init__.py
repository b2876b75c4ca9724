"""Attacks that know attention: patches on tokens, hidden gradients, the logit ledger."""
