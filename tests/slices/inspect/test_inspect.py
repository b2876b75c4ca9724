"""Inspection returns what the command prints, for files, networks in memory and segmenters."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import robustkit
from robustkit.cli.app import cli
from robustkit.common.preprocessing import Preprocessing
from robustkit.display.console import table_lines
from robustkit.errors import ProtocolError
from robustkit.models.setup_check import FITS, PartFit, Setup, SetupFit
from robustkit.slices.inspect.inspection import setup_table


def test_inspect_is_what_the_command_prints() -> None:
    options: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    found = robustkit.inspect("zoo:shapes-vit-quest", "embedded:shapes", limit=6, **options)
    words = ["inspect", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes", "--limit", "6"]
    done = CliRunner().invoke(cli, [*words, "--mean", "0.5", "--std", "0.5"], env={"COLUMNS": "400"})
    printed = done.stdout.splitlines()
    texts = [f"{name:>14}  {text}" for name, text in found.facts]
    assert printed[: len(texts)] == texts
    for text in (*found.lines, *(table.title for table in found.tables), found.stated.heading, found.stated.command):
        assert text in printed
    frame = found.to_frame()
    assert set(frame[frame.best].part) == set(frame.part) >= {"attention", "normalisation", "crop", "channels"}
    for row in frame.to_dict("records"):
        if row["part"] == "attention":
            assert any(line.split()[:1] == [row["name"]] and f"{row['nll']:.3f}" in line for line in printed)
    assert found.stated.settings["mean"] == (0.5,) * 3 and "quest" in found._repr_html_()
    assert json.loads(found.to_json())["command"] == found.stated.command
    with pytest.raises(TypeError, match="unknown keyword 'eps'; known: allow_partial, arch"):
        robustkit.inspect("zoo:shapes-vit-quest", eps=1)


def test_inspect_states_a_network_in_memory() -> None:
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 4))
    alone = robustkit.inspect(net, pixels=True, img_size=32)
    assert alone.stated.settings == {"pixels": True, "img_size": 32, "crop_pct": 1.0, "interpolation": "bicubic"}
    assert not alone.stated.command and alone.to_frame().empty and ("checkpoint", "memory:Sequential") in alone.facts


def test_a_segmenter_and_options_of_the_other_kind() -> None:
    model = robustkit.load_segmenter("zoo:shapes-segmenter-quest")
    options: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 1}
    found = robustkit.inspect({"mine": model}, **options)
    assert found.tables[0].headings[1] == "pixel acc. %"
    with pytest.raises(ProtocolError, match="labels_csv: only for a classifier's images, and this is a segmenter"):
        robustkit.inspect(model, labels_csv="x", **options)
    with pytest.raises(ProtocolError, match="masks: only for a segmenter's images, and this is a classifier"):
        robustkit.inspect("zoo:shapes-vit-quest", masks="x", **options)
    with pytest.raises(ProtocolError, match="2 checkpoints; expected one"):
        robustkit.inspect([model, model], **options)


def test_a_ranking_says_of_how_many_images_each_row_is() -> None:
    def row(name: str, n: int, nll: float, behind: float) -> SetupFit:
        return SetupFit(name, 0.5, nll, behind, behind - 0.1, behind + 0.1, n, Setup(Preprocessing((4, 4))), 0.2)

    names = ("CIFAR-10, std 0.2", "ImageNet, 0 to 255", "none, 0 to 255")
    rows = tuple(row(name, 64 - 32 * place, 0.5 + place, 1.0 * place) for place, name in enumerate(names[:2]))
    table = setup_table([PartFit("normalisation", rows, names[0], FITS), PartFit("channels", rows[:1], names[0], FITS)])
    for width in (60, 80):
        lines = [line.text for line in table_lines(table, width)]
        assert max(map(len, lines)) <= width and sum("NLL minus" in line for line in lines) == 1  # one table
        text = "\n".join(lines)
        assert all(cell in text for cell in ("+1.000 [+0.900, +1.100]", "in use"))
    assert [cells[1] for cells in table.rows] == ["64", "32", "64"] and "both on the same n images" in table.note
    alone = setup_table([PartFit("channels", rows[:1], names[0], FITS)])
    assert alone.title.endswith("; n = 64") and "n" not in alone.headings and "n images" not in alone.note
