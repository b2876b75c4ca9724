"""A classifier of images under a card."""

from __future__ import annotations

from ...evaluations.images import ImageSubject
from ..labelled.subject import LabelledSubject


class ClassifierSubject(LabelledSubject, ImageSubject):
    """One classifier of images on its device under one card."""
