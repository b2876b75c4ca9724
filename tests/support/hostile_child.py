"""Open hostile files one by one, and print what became of each: the message, the peak of memory, the time.

    python hostile_child.py MODULE TABLE FOLDER [NAME]...      the cases of MODULE.TABLE, in FOLDER

A child of its own, so that memory is bounded by the system and what a file starts can be seen.
"""

from __future__ import annotations

import importlib
import json
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bounded import memory

ROOM = 8 << 30  # of addresses, so that no case harms the machine


def use(image: bytes, folder: Path) -> str:
    """What is done with a picture: as an image of a data set, and as either kind of mask."""
    from robustkit.common.preprocessing import Preprocessing
    from robustkit.data.images import image_sizes, object_mask, read_image, read_index_mask, to_pixels
    from robustkit.errors import BadImageError

    image_sizes(image)
    for read in (object_mask, read_index_mask):
        try:
            read(image, "photo.jpg")
        except BadImageError as fault:
            assert str(fault).startswith("photo.jpg: ") and "\n" not in str(fault)
    decoded = read_image(image, "photo.jpg")
    return f"photo.jpg: fine: {tuple(to_pixels(decoded, Preprocessing(), 'photo.jpg').shape)}"


def attempt(case: Any, opened: Callable[[Any, Path], str], folder: Path) -> dict[str, Any]:
    from robustkit.errors import RobustkitError

    made = case(folder) if opened is not use else case()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    held, began = memory("VmRSS"), time.process_time()
    signal.alarm(120)
    try:
        said = opened(made, folder)
    except RobustkitError as fault:
        said = str(fault)
    except BaseException as fault:
        said = f"NOT ONE LINE: {type(fault).__name__}: {fault}"
    signal.alarm(0)
    return {"said": said[:2000], "peak": memory("VmHWM") - held, "seconds": time.process_time() - began}


def call(made: Callable[[], Any], _: Path) -> str:
    return f"fine: {made()}"[:200]


def main() -> None:
    module, table, folder, *names = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    import robustkit.pipeline.audit  # noqa: F401 - torch, timm and all the rest, which every case has loaded

    cases = getattr(importlib.import_module(module), table)
    for place, name in enumerate(names or cases):
        own = Path(folder) / str(place)
        own.mkdir()
        opened = use if module == "hostile_images" else call
        print(json.dumps({"name": name, **attempt(cases[name][0], opened, own)}), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("two minutes")))
    main()
