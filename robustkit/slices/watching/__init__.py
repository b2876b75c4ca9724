"""Watched attention: what each head does on images, and why its logits change from one image to another."""
