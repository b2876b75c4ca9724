"""`python -m robustkit`."""

from .cli.app import main

main()
