"""Take the pictures of the README and the site's home: the first screen of the demo's report, and of a gallery of maps.

    python -m scripts.pages.pictures [--work DIR] [--out docs/pictures]

Makes the demo and a gallery in DIR unless they are there, and opens them in headless Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
SIZES = {"report": (1280, 900), "gallery": (1340, 920)}
"""Windows in CSS pixels; pictures have as many."""

DEMO = ["demo", "--out", "demo"]
GALLERY = ["cam", "zoo:shapes-vit-standard", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes"]
GALLERY += ["--cams", "agcam,rollout", "--limit", "20", "--out", "maps"]


def main(arguments: list[str] | None = None) -> int:
    """Write report.webp and gallery.webp. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "robustkit-pictures")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    options = parser.parse_args(arguments)
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("no Chromium found; install chromium", file=sys.stderr)
        return 2
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    pages = {
        "report": options.work / "demo" / "report.html",
        "gallery": options.work / "maps" / "cams" / "gallery.html",
    }
    for words, page in zip((DEMO, GALLERY), pages.values(), strict=True):
        if not page.exists():
            subprocess.run([sys.executable, "-m", "robustkit", *words], cwd=options.work, check=True)
    for name, page in pages.items():
        path = options.out / f"{name}.webp"
        path.write_bytes(shrunk(screenshot(browser, page, *SIZES[name])))
        print(path, f"{path.stat().st_size / 1000:.0f} kB")
    return 0


def screenshot(browser: str, page: Path, width: int, height: int) -> bytes:
    """Return the top of a page as PNG, without scroll bars, in light colours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        words = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
        words += [f"--screenshot={path}", f"--user-data-dir={folder}/profile", page.resolve().as_uri()]
        subprocess.run([browser, *words], check=True, capture_output=True, timeout=120)
        return path.read_bytes()


def shrunk(png: bytes) -> bytes:
    """Return the same picture as WebP, small enough to be committed."""
    stream = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").save(stream, "WEBP", quality=82, method=6)
    return stream.getvalue()


if __name__ == "__main__":
    sys.exit(main())
