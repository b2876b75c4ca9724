"""Take the pictures of the README, the site's home and the site's gallery.

    python -m scripts.pages.pictures [--work DIR] [--out docs/pictures] [--only gallery]

Makes the demo, a gallery of maps and what docs/gallery.md shows in DIR, unless they are there. The first screens of the
demo's report and of the gallery of maps are taken in headless Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
SCREENS, PAGE = "screens", "gallery"
SIZES = {"report": (1280, 900), "gallery": (1340, 920)}
"""Windows in CSS pixels; pictures have as many."""

DEMO = ["demo", "--out", "demo"]
GALLERY = ["cam", "zoo:shapes-vit-standard", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes"]
GALLERY += ["--cams", "agcam,rollout", "--limit", "20", "--out", "maps"]


ZOO = ("zoo:shapes-vit-standard", "zoo:shapes-vit-quest")
ON_ATTENTION = "agcam,agcam-full,legrad,chefer,rollout,grad-cam"
ON_PIXELS = "grad-cam-pp,layer-cam,rise,gradient,integrated-gradients,smooth-grad"
CORRUPT = ["corrupt", "cat.png", "--corruptions", "in-c"]
CAM = ["cam", ZOO[1], "heart.png", "--size", "170", "--format", "png"]
AUDIT = ["audit", *ZOO, "--data-dir", "embedded:shapes", "--limit", "200", "--attacks", "pgd"]
AUDIT += ["--eps", "0.5/255,1/255,2/255,4/255", "--corruptions", "noise,blur", "--out", "curves"]
WIDTH = 960
"""Of the pictures of docs/gallery.md, in pixels."""


def main(arguments: list[str] | None = None) -> int:
    """Write the pictures. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "robustkit-pictures")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--only", choices=(SCREENS, PAGE), help="those of the first screens, or of docs/gallery.md")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    pictures = list[Path]()
    if options.only != SCREENS:
        pictures += gallery(options.work, options.out)
    if options.only != PAGE:
        browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if browser is None:
            print("no Chromium found; install chromium", file=sys.stderr)
            return 2
        pictures += screens(browser, options.work, options.out)
    for path in pictures:
        print(path, f"{path.stat().st_size / 1000:.0f} kB")
    return 0


def screens(browser: str, work: Path, out: Path) -> Iterator[Path]:
    """Write report.webp and gallery.webp, and yield their paths."""
    pages = {"report": work / "demo" / "report.html", "gallery": work / "maps" / "cams" / "gallery.html"}
    for words, page in zip((DEMO, GALLERY), pages.values(), strict=True):
        if not page.exists():
            robustkit(words, work)
    for name, page in pages.items():
        path = out / f"{name}.webp"
        path.write_bytes(shrunk(screenshot(browser, page, *SIZES[name])))
        yield path


def gallery(work: Path, out: Path) -> Iterator[Path]:
    """Write the pictures of docs/gallery.md, and yield their paths."""
    from robustkit import Run
    from robustkit.data import open_dataset
    from robustkit.data.shapes import photograph

    Image.fromarray(photograph("chelsea")[:, 80:380]).resize((224, 224)).save(work / "cat.png")
    robustkit(CORRUPT, work)
    yield narrowed(work / "cat-corruptions.png", out / "corruptions.webp", quality=60)
    dataset = open_dataset("embedded:shapes")
    dataset.image(dataset.samples[4]).save(work / "heart.png")
    for name, methods in {"maps-attention": ON_ATTENTION, "maps-pixels": ON_PIXELS}.items():
        robustkit([*CAM, "--cams", methods], work)
        yield narrowed(work / "heart-cam.png", out / f"{name}.webp", quality=85)
    if not (work / "curves" / "report.html").exists():
        robustkit(AUDIT, work)
    run = Run(work / "curves")
    for section in ("attacks", "corruptions"):
        path = out / f"{section}.svg"
        run.plot(section).savefig(path, metadata={"Date": None})
        yield path


def robustkit(words: Sequence[str], work: Path) -> None:
    subprocess.run([sys.executable, "-m", "robustkit", *words], cwd=work, check=True)


def narrowed(source: Path, target: Path, quality: int) -> Path:
    """Write a picture as WebP of WIDTH, and return its path."""
    with Image.open(source) as picture:
        size = (WIDTH, round(picture.height * WIDTH / picture.width))
        picture.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(target, "WEBP", quality=quality, method=6)
    return target


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
