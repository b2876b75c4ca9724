"""The vocabulary of a run: protocol cards and their parameters. Loads no torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
