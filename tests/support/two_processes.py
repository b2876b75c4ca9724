"""Run a command in two processes as torchrun would start them, without torchrun's own and with one import for both.

python two_processes.py WORD...          robustkit WORD..., in each process; ends with the higher status
"""

import os
import socket
import sys

import robustkit.pipeline.audit  # noqa: F401 - torch and all the rest, before the processes part
from robustkit.cli.app import main


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port: int = one.getsockname()[1]
        return port


def ended(rank: int) -> int:
    """Run the command as this process of two; return its exit status."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    status = 1
    try:
        main()
        status = 0
    except SystemExit as left:
        status = int(left.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))
    children = []
    for rank in (0, 1):
        if not (child := os.fork()):
            ended(rank)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
