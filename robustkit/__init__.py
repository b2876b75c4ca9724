"""RobustKit: how a vision checkpoint behaves under attack and corruption, and what it looks at."""

from __future__ import annotations

__version__ = "0.1.0"
