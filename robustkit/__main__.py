"""`python -m robustkit`: like the command, it imports nothing of the current folder, which may have an attacks.py."""

import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path.cwd() != Path(__file__).resolve().parents[1]:
    del sys.path[0]

from .cli.app import main

main()
