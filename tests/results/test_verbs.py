"""Verbs return what commands print: the same differences, verdicts and tables, as HTML, a frame and JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from compared_runs import PGD, N, command, records_of, run_of
from PIL import Image

import cam
import robustkit
from robustkit.display.notebook import as_html
from robustkit.display.table import TextTable


def test_compare_is_what_the_command_writes(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", records_of("clean", PGD))
    found, target = robustkit.compare(run), tmp_path / "differences.json"
    assert command(run.path, "--json", target)[0] == 0
    assert json.loads(found.to_json()) == json.loads(target.read_text("utf-8"))
    frame = found.to_frame()
    first = found.comparison.rows[0]
    assert list(frame["first"].unique()) == ["plain"] and frame["p_holm"][0] == first.p_value
    assert frame["first_value"][0] == first.difference.first and frame["n"][0] == N
    assert f"<td>{100 * first.difference.first:.2f}</td>" in found._repr_html_()


def test_tables_are_escaped_and_keep_heads_flags_and_the_note() -> None:
    table = TextTable("<t>", ("a", "b"), (("<1>", "2"),), ("f&",), "n", heads=((0, "h<"),), below=((0, "u"),))
    assert as_html([table, table], ["<line>"]).splitlines() == [
        "<p>&lt;line&gt;</p>",
        *[
            *("<table>", "<caption>&lt;t&gt;</caption>", "<tr><th>a</th><th>b</th></tr>"),
            *('<tr><th colspan="2">h&lt;</th></tr>', "<tr><td>&lt;1&gt;</td><td>2</td></tr>"),
            *('<tr><td colspan="2">u</td></tr>', "</table>", "<p>⚑ f&amp;</p>"),
        ]
        * 2,
        "<p><small>n</small></p>",
    ]


def test_verbs_load_no_torch_before_they_are_used() -> None:
    code = "import robustkit, sys; robustkit.report; print('torch' in sys.modules, callable(robustkit.report))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_map_lies_over_an_image_of_any_kind() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[..., 0] = 255  # red is grey 76
    heat = torch.zeros(4, 6)
    heat[:, 3:] = 1
    drawn = np.asarray(cam.overlay(torch.tensor(pixels / 255).permute(2, 0, 1), heat))
    assert drawn.shape == (4, 6, 3)
    low, high = np.array([0, 34, 78]), np.array([254, 232, 56])  # the ends of cividis
    assert (
        np.abs(drawn[0, 0] - (0.79 * 76 + 0.21 * low)).max() < 1.5
        and np.abs(drawn[0, 5] - (0.4 * 76 + 0.6 * high)).max() < 1.5
    )
    for same in (pixels, pixels / 255, Image.fromarray(pixels)):
        assert (np.asarray(cam.overlay(same, heat[None])) == drawn).all()
    with pytest.raises(ValueError, match=r"image has the shape \(4, 6\); expected one"):
        cam.overlay(pixels[..., 0], heat)
    with pytest.raises(ValueError, match=r"map has the shape \(2, 4, 6\); expected one"):
        cam.overlay(pixels, torch.stack([heat, heat]))
