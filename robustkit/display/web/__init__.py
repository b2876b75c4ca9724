"""What all pages share: how they look, and pictures that are enlarged in a dialog."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

LOOK, ENLARGE = "look.css", "enlarge.js"


def shared(name: str) -> str:
    """Return a style sheet or a script, `LOOK` or `ENLARGE`."""
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def policy(script: str) -> str:
    """Return the Content-Security-Policy of a page that fetches nothing and runs this script alone; '' for none."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    source = f"'sha256-{digest}'" if script else "'none'"
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {source}; base-uri 'none'; "
        "form-action 'none'"
    )
