"""Check who else is installed under the names of robustkit's packages: three of them are general words."""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .unexpected import Caution, UnexpectedAnswer

OURS = "robustkit-audit"
PACKAGES = ("attacks", "cam", "corruptions", "robustkit")


def owners() -> str:
    """Say whether another distribution has files under one of our names.

    Raises:
        UnexpectedAnswer: what is imported under such a name is not ours.
    """
    house, claims = Path(__file__).parents[3], metadata.packages_distributions()
    shared, foreign = list[str](), list[str]()
    for name in PACKAGES:
        others = [_described(other) for other in dict.fromkeys(claims.get(name, ())) if _canonical(other) != OURS]
        found = find_spec(name)
        origin = None if found is None or found.origin is None else Path(found.origin)
        ours = origin is not None and origin.parent.parent == house and _as_installed(origin)
        belongs = f"{name} belongs to {', '.join(others)}, too" if others else name
        if not ours:
            foreign.append(f"{belongs}; what is imported, {origin}, is not robustkit's")
        elif others:
            shared.append(f"{belongs}; robustkit's own is imported, {origin}")
    if foreign:
        raise UnexpectedAnswer("; ".join([*foreign, *shared]))
    said = f"{OURS} {_version()} at {house}"
    if not shared:
        return f"{said}; no other distribution has its names"
    return Caution(f"{said}; {'; '.join(shared)}; install robustkit in an environment of its own")


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _described(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return name


def _version() -> str:
    try:
        return metadata.version(OURS)
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return "(not installed)"


def _as_installed(path: Path) -> bool:
    """Whether a file is the one that was installed; true where nothing says what that was, as in a checkout."""
    try:
        files = metadata.files(OURS) or []
    except metadata.PackageNotFoundError:
        return True
    for file in files:
        if file.hash is not None and file.hash.mode == "sha256" and Path(str(file.locate())) == path:
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
            return digest == file.hash.value
    return True
