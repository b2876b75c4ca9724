"""Code blocks of the pages, and a place with the files that they name in which they are run."""

from __future__ import annotations

import difflib
import importlib.util
import io
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from places import ROOT

MOST = 2
"""What `--limit` and `limit=` are cut to: the pages show amounts of work that a person wants."""

RUN = ("sh", "python")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<said>[^\n]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the comment on the line above it.

    not run: REASON says why it is not run. status N is the exit status of its last command. file: NAME is where its
    text belongs. printed: the commands before it print its lines; printed by COMMAND: that command does.
    """

    kind: str
    text: str
    said: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty where it is."""
        return self.said.removeprefix("not run: ") if self.said.startswith("not run: ") else ""

    @property
    def status(self) -> int:
        return int(self.said.removeprefix("status ")) if self.said.startswith("status ") else 0

    @property
    def file(self) -> str:
        """The file that its text is the content of: as the comment says, or as its first line does."""
        first = re.match(r"# (\w+\.py)\n", self.text) if self.kind == "python" else None
        return self.said.removeprefix("file: ") if self.said.startswith("file: ") else first[1] if first else ""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(found["kind"], found["text"], found["said"] or "") for found in _BLOCK.finditer(text)]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command in a block of shell."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word not in ("&&", "||", "|", ";", ">", ">>"):
                words.append(word)
                continue
            if words:
                yield words
            words = []


def furnish(place: Path) -> None:
    """Write the checkpoints, images and masks that pages call resnet.pth, val, scenes and so on."""
    from robustkit.data import open_dataset, open_scenes

    torch.manual_seed(0)
    torch.save(timm.create_model("resnet18", num_classes=10).state_dict(), place / "resnet.pth")
    shipped = ROOT / "robustkit" / "embedded"
    for name in ("model", "vit", "standard", "quest"):
        shutil.copyfile(shipped / "shapes-vit-quest.safetensors", place / f"{name}.safetensors")
    shutil.copyfile(shipped / "shapes-vit-standard.safetensors", place / "next.safetensors")
    shutil.copyfile(shipped / "shapes-segmenter-quest.safetensors", place / "segmenter.safetensors")
    images = open_dataset("embedded:shapes").select(limit=20)
    boxes = ["image,synset,xmin,ymin,xmax,ymax"]
    for index, sample in enumerate(images.samples):
        path = place / "val" / images.class_names[sample.label] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(images.image(sample))).save(path)
        boxes.append(f"{path.stem},{path.parent.name},16,16,48,48")
    (place / "boxes.csv").write_text("\n".join(boxes) + "\n")
    shutil.copyfile(path, place / "picture.png")
    if importlib.util.find_spec("transformers"):
        from robustkit.models.classifier import load
        from scripts.hf.convert_vit import write

        write(load("zoo:shapes-vit-standard"), place / "vit-hf", list(images.class_names))
    (place / "imagenet").mkdir()
    shutil.copytree(place / "val", place / "imagenet" / "val")
    scenes = open_scenes("embedded:shapes").select(limit=4)
    for kind in ("images", "masks"):
        (place / "scenes" / kind).mkdir(parents=True)
    for index, sample in enumerate(scenes.dataset.samples):
        pixels = np.asarray(scenes.dataset.image(sample))
        Image.fromarray(pixels).save(place / "scenes" / "images" / f"{index}.png")
        labels = scenes.labels(sample, pixels.shape[:2]).astype(np.uint8)
        Image.fromarray(labels).save(place / "scenes" / "masks" / f"{index}.png")
    (place / "scenes" / "classes.txt").write_text("\n".join(scenes.class_names) + "\n")


def run_page(page: Path, place: Path, patch: pytest.MonkeyPatch) -> int:
    """Run a page's blocks in the folder `place`, one after another; how many were run.

    What a page shows as printed is compared except for its numbers, since amounts of work are cut.
    """
    patch.chdir(place)
    patch.syspath_prepend(str(place))
    scope: dict[str, Any] = {"__name__": "page"}
    count, screen = 0, io.StringIO()
    for block in blocks_of(page):
        if block.said == "printed":
            assert not (odd := unprinted(block.text, screen.getvalue())), f"{page.name}: not printed today: {odd}"
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        if block.kind not in RUN or block.reason or block.said == "test":
            continue
        count += 1
        if block.kind == "python":
            exec(compile(_less(block.text), f"{page.name}", "exec"), scope)
            continue
        found, screen = list(commands(block.text)), io.StringIO()
        for position, words in enumerate(found):
            status = call(less(words), patch, screen)
            expected = block.status if position == len(found) - 1 else 0
            assert status == expected, f"{page.name}: {shlex.join(words)}: status {status}, not {expected}"
    return count


def call(words: list[str], patch: pytest.MonkeyPatch, screen: io.StringIO) -> int:
    """The exit status of a command: robustkit's in this process, whose screen is kept, another in its own."""
    if words[0] != "robustkit":
        return subprocess.run(words, check=False).returncode
    from robustkit.cli.app import main

    patch.setattr(sys, "argv", words)
    patch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as left, redirect_stdout(screen), redirect_stderr(screen):
        main()
    return int(left.value.code or 0)


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def unprinted(quoted: str, output: str, exactly: bool = False) -> list[str]:
    """The lines of a block that no line of an output is like, numbers aside.

    exactly: the words are the same, and the numbers within 5 %, as on other processors; else words may differ that
    depend on the amount of work.
    """
    lines = [line for line in map(_words, output.splitlines()) if line]
    return [
        line
        for line in map(_words, quoted.splitlines())
        if line and not any(_same(line, printed) if exactly else _alike(line, printed) for printed in lines)
    ]


def _words(line: str) -> str:
    return " ".join(line.replace("─", " ").split())


def _alike(line: str, printed: str) -> bool:
    first, second = (_NUMBER.sub("0", text) for text in (line, printed))
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio() >= 0.9


def _same(line: str, printed: str) -> bool:
    if _NUMBER.sub("0", line) != _NUMBER.sub("0", printed):
        return False
    pairs = zip(*(map(float, _NUMBER.findall(text)) for text in (line, printed)), strict=True)
    return all(math.isclose(one, other, rel_tol=0.05, abs_tol=0.02) for one, other in pairs)


def shown_by(page: Path) -> Iterator[tuple[list[list[str]], str]]:
    """Of each block that a page shows as printed the commands that print it, and its text."""
    before: list[list[str]] = []
    for block in blocks_of(page):
        if block.kind == "sh":
            before = list(commands(block.text))
        if block.said.startswith("printed by "):
            yield [shlex.split(block.said.removeprefix("printed by "))], block.text
        elif block.said == "printed":
            yield before, block.text


def less(words: list[str]) -> list[str]:
    """The same words with a smaller `--limit`."""
    return [
        str(min(int(word), MOST)) if before == "--limit" and word.isdigit() else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def _less(code: str) -> str:
    """The same Python with a smaller `limit`."""
    return re.sub(r"\blimit=(\d+)", lambda found: f"limit={min(int(found[1]), MOST)}", code)


def plain_environment(patch: pytest.MonkeyPatch) -> None:
    """No option comes from the environment."""
    for name in [name for name in os.environ if name.startswith("ROBUSTKIT_")]:
        patch.delenv(name)
