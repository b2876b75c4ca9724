"""`python -m robustkit`."""

from .cli import main

main()
