"""All explainers by name: those of the package `cam`, and the ones of plug-ins."""

from __future__ import annotations

import cam

from ..common.registry import Registry, subclass_of

EVERY_EXPLAINER: Registry[type[cam.Explainer]] = Registry("explainers", cam.METHODS, subclass_of(cam.Explainer))
