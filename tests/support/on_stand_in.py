"""Run the command `robustkit` where there are two stand-in devices; say on which of them it computed.

python on_stand_in.py WORD...
"""

import os
import sys

from stand_in import devices, prepare

from robustkit.cli.app import main

if __name__ == "__main__":
    prepare()
    status = 1
    with devices(2) as seen:
        try:
            status = main()
        finally:
            print(f"process {os.environ.get('LOCAL_RANK')} computed on {sorted(seen.on)}", file=sys.stderr, flush=True)
    sys.exit(status)
