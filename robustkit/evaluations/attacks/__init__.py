"""Evaluate a model under attack: conditions, reference engines, stages, evidence about its gradients."""
