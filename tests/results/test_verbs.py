"""Verbs return what commands print: the same differences, verdicts and tables, as HTML, a frame and JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compared_runs import PGD, N, command, records_of, run_of
from PIL import Image

import cam
import robustkit
from robustkit.display.html import as_html
from robustkit.display.table import Table
from robustkit.errors import ProtocolError

METHODS = ("agcam", "rollout", "grad-cam")


def test_compare_is_what_the_command_writes(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", records_of("clean", PGD))
    found, target = robustkit.compare(run), tmp_path / "differences.json"
    assert command(run.path, "--json", target)[0] == 0
    assert json.loads(found.to_json()) == json.loads(target.read_text("utf-8"))
    frame = found.to_frame()
    first = found.comparison.rows[0]
    assert list(frame["first"].unique()) == ["plain"] and frame["p_holm"][0] == first.p_value
    assert frame["first_value"][0] == first.difference.first and frame["n"][0] == N
    assert f">{100 * first.difference.first:.1f}</td>" in found._repr_html_()


def test_tables_are_escaped_and_keep_heads_flags_and_the_note() -> None:
    table = Table("<t>", ("a", "b"), (("<1>", "2"),), ("f&",), "n", heads=((0, "h<"),), below=((0, "u"),))
    assert as_html([table, table], ["<line>"]).splitlines() == [
        "<p>&lt;line&gt;</p>",
        *[
            *("<table>", "<caption>&lt;t&gt;</caption>"),
            '<thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>',
            *("<tbody>", '<tr><th scope="rowgroup" colspan="2">h&lt;</th></tr>'),
            '<tr><th scope="row" class="plain">&lt;1&gt;</th><td class="text">2</td></tr>',
            *('<tr><td colspan="2">u</td></tr>', "</tbody>", "</table>", "<p>⚑ f&amp;</p>"),
        ]
        * 2,
        "<p><small>n</small></p>",
    ]


def test_maps_of_pictures_in_memory() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    images = torch.randint(256, (2, 3, 16, 16)) / 255
    drawn = robustkit.cam({"mine": net}, images, pixels=True, cams="grad-cam", targets=["3"])
    assert list(drawn.maps) == [f"mine/grad-cam/3/0000{place}" for place in range(2)]
    for heat, wanted in zip(drawn.maps.values(), cam.GradCAM(net, "0")(images, 3), strict=True):
        np.testing.assert_allclose(heat, wanted, atol=1e-5)
    assert list(drawn.to_frame()["map"]) == ["grad-cam, 3"] * 2 and drawn._repr_html_().startswith("<img src=")
    with pytest.raises(TypeError, match="got limit, which is of a data set; these are pictures"):
        robustkit.cam(net, images, pixels=True, limit=1)
    with pytest.raises(ProtocolError, match=r"expected a file that ends in \.png, \.pdf, \.svg, \.html, \.npz"):
        drawn.save("maps.jpg")


def test_maps_of_usual_methods_for_named_classes_of_pictures_of_all_kinds(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    quest = "zoo:shapes-vit-quest"
    drawn = robustkit.cam(quest, [Image.fromarray(pixels), tmp_path / "a.png", pixels], targets="star")
    assert list(drawn.maps) == [
        f"shapes-vit-quest/{method}/star/0000{place}"
        for place in range(3)
        for method in ("agcam", "rollout", "grad-cam")
    ]
    first, *others = (drawn.maps[f"shapes-vit-quest/agcam/star/0000{place}"] for place in range(3))
    assert all((other == first).all() for other in others)
    assert list(robustkit.cam(quest, pixels, cams="agcam", targets=[3]).maps) == ["shapes-vit-quest/agcam/disc/00000"]
    for options, said in (({"gallery": 3}, "got gallery, which is of a data set"), ({"limit": 1}, "got limit, which")):
        with pytest.raises(TypeError, match=said):
            robustkit.cam(quest, pixels, **options)
    with pytest.raises(ProtocolError, match="gallery=0: expected 1 or more"):
        robustkit.cam(quest, "embedded:shapes", gallery=0)


def test_a_gallery_of_a_data_set_names_its_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cams": "agcam", "faithfulness": "none", "limit": 4, "device": "cpu"}
    drawn = robustkit.cam("zoo:shapes-vit-quest", "embedded:shapes", gallery=2, out=tmp_path / "run", **options)
    assert drawn.run is not None and drawn.run.path == tmp_path / "run" and len(drawn.rows) == 2
    assert (tmp_path / "run" / "cams" / "gallery.html").is_file()


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
    low, high = np.array([0, 0, 4]), np.array([252, 255, 164])  # the ends of inferno
    assert np.abs(drawn[0, 0] - (0.66 * 76 + 0.34 * low)).max() < 1.5
    assert np.abs(drawn[0, 5] - (0.15 * 76 + 0.85 * high)).max() < 1.5
    low, high = np.array([0, 34, 78]), np.array([254, 232, 56])  # of cividis
    faint = np.asarray(cam.overlay(pixels, heat, "cividis", 0.5))
    assert np.abs(faint[0, 0] - (0.8 * 76 + 0.2 * low)).max() < 1.5
    assert np.abs(faint[0, 5] - (0.5 * 76 + 0.5 * high)).max() < 1.5
    assert (np.asarray(cam.overlay(pixels, heat, alpha=0)) == 76).all()
    for same in (pixels, pixels / 255, Image.fromarray(pixels)):
        assert (np.asarray(cam.overlay(same, heat[None])) == drawn).all()
    with pytest.raises(ValueError, match=r"image has the shape \(4, 6\); expected one"):
        cam.overlay(pixels[..., 0], heat)
    with pytest.raises(ValueError, match=r"map has the shape \(2, 4, 6\); expected one"):
        cam.overlay(pixels, torch.stack([heat, heat]))
    with pytest.raises(ValueError, match="unknown colormap 'rainbow'; known: inferno, magma"):
        cam.overlay(pixels, heat, "rainbow")
    for alpha in (-0.1, 1.1):
        with pytest.raises(ValueError, match="expected a number from 0 to 1"):
            cam.overlay(pixels, heat, alpha=alpha)
