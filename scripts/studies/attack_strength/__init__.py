"""How strong our attacks are next to stronger or outside ones, and what AutoAttack in two phases saves."""

from __future__ import annotations

import argparse

import torch

from scripts.bench.race import Subject, subject


def parser_of(doc: str | None, limit: int) -> argparse.ArgumentParser:
    """Return a parser of the options for a checkpoint and its images. limit: how many, if not stated."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--attention")
    parser.add_argument("--images", required=True, help="a data set as robustkit audit takes it")
    parser.add_argument("--limit", type=int, default=limit)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def subject_of(options: argparse.Namespace) -> Subject:
    stated = {"arch": options.arch, "attention": options.attention}
    return subject(options.checkpoint, options.images, options.limit, options.device, **stated)
