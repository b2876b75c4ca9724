from .summary import Run as Run
