"""Wrong words on the command line: an exit status and one line that says what is wrong and what to do."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from robustkit.cli.app import main

pytestmark = pytest.mark.usefixtures("one_thread")
VIT, SEG, SHAPES = "zoo:shapes-vit-standard", "zoo:shapes-segmenter-quest", "--data-dir embedded:shapes --limit 2"
EMPTY = "it is empty; expected:"
NONE = "no such file, and unknown kind of checkpoint"

WRONG: list[tuple[str, str]] = [  # words, and how the one line goes
    (
        f"audit foo:bar {SHAPES}",
        rf"foo:bar: {NONE} 'foo'.*; expected a file, zoo:NAME, timm:NAME, hf:DIR, hf-hub:ORG/NAME.*",
    ),
    (f"audit zooo:shapes-vit {SHAPES}", rf"zooo:shapes-vit: {NONE} 'zooo'; did you mean 'zoo'\?.*"),
    (f"inspect http://a.b/c.pth {SHAPES}", rf"http://a\.b/c\.pth: {NONE} 'http';.*; fetch it to a file first"),
    (f"audit '' {SHAPES}", "the name of a checkpoint is empty; expected a file, zoo:NAME.*"),
    (f"audit {VIT} --data-dir ''", f".*'--data-dir': {EMPTY} Folder, zip, or embedded:shapes..*"),
    (f"audit {VIT} {SHAPES} --out ''", f".*'--out': {EMPTY} Run folder; default: runs/<checkpoint>..*"),
    (f"attack {VIT} {SHAPES} --out ' '", f".*'--out': {EMPTY} Run folder; default: runs/<checkpoint>..*"),
    (f"segment {SEG} {SHAPES} --out ''", f".*'--out': {EMPTY} Run folder; default: runs/<checkpoint>..*"),
    ("demo --out ''", f".*'--out': {EMPTY} Run folder..*"),
    (f"cam {VIT} {SHAPES} --out ''", f".*'--out': {EMPTY} Run folder; default: runs/<checkpoint>..*"),
    ("card run --out ''", f".*'--out': {EMPTY} Output folder; default: RUN/card..*"),
    ("corrupt pics/0.png --out ''", f".*'--out': {EMPTY} Contact sheet to write, or a folder for several..*"),
    (f"audit {VIT} {SHAPES} --attacks ' '", f".*'--attacks': {EMPTY}.*"),
    (
        f"audit {VIT} {SHAPES} --limit 3 --attacks fgsm --cams agcam --attacks=pgd(steps=2)",
        r"--attacks is given 2 times; give one list, --attacks 'fgsm,pgd\(steps=2\)'",
    ),
    ("corrupt pics/0.png --corruptions ''", f".*'--corruptions': {EMPTY}.*"),
    ("report ''", f".*'RUN': {EMPTY} a value. See.*"),
    (
        f"audit {VIT} {SHAPES} --attacks none,pgd",
        "--attacks none,pgd: none cannot be combined with others; leave out none, or .*",
    ),
    (
        f"segment {SEG} {SHAPES} --attacks pgd,none",
        "--attacks pgd,none: none cannot be combined with others; leave out none, or .*",
    ),
    (f"audit {VIT} {SHAPES} --attacks none --eps 1/255", "--eps: needs attacks, but --attacks is none; name some.*"),
    (f"audit {VIT} {SHAPES} --stability --boxes a.csv", "--stability, --boxes: needs maps; give --cams, or .*"),
    (
        f"audit {VIT} {SHAPES} --constants cifar",
        "--constants: needs corruptions; give --corru.*",
    ),
    (
        f"audit {VIT} {SHAPES} --preset cifar",
        "preset 'cifar': the constants .* are chosen by --constants cifar; a preset.*",
    ),
    (f"segment {SEG} {SHAPES} --preset quik", "unknown preset 'quik'; did you mean 'quick'.*"),
    (
        "corrupt pics/0.png --preset cifar",
        "--preset cifar: the constants of corruptions are chosen by --constants cifar",
    ),
    (
        f"attack {VIT} {SHAPES} --preset full --attacks none --eps 1",
        "--eps: needs attacks, but --attacks is none; .*",
    ),
    (f"segment {SEG} {SHAPES} --attacks none --norm l2", "--norm: needs attacks, but --attacks is none; .*"),
    (f"inspect {VIT} --limit 3 --masks m", "--masks, --limit: only for images, and --data-dir is missing; give .*"),
    (f"inspect {VIT} {SHAPES} --masks m", "--masks: only for a segmenter's images, and this is a classifier; leave .*"),
    (f"inspect {SEG} {SHAPES} --layout csv", "--layout: only for a classifier's images, and this is a segmenter; .*"),
    (
        f"audit {VIT} {SHAPES} --limit banana",
        ".*'--limit': 'banana' is not a valid integer. See robustkit audit .*",
    ),
    (f"audit {VIT} {SHAPES} --batch-size few", ".*: 'few'; expected a number of 1 or more, or auto. See robustkit .*"),
    (f"audit {VIT} {SHAPES} --num-classes 0", ".*'--num-classes': 0 is not in the range x>=1.*"),
    (f"audit {VIT} {SHAPES} --img-size -5", ".*'--img-size': -5 is not in the range x>=1.*"),
    (f"audit {VIT} {SHAPES} --device mps", r"device 'mps' cannot be used \([^()]{1,160}\); use --device auto"),
    (
        f"audit {VIT} zoo:cifar10-vit-quest {SHAPES}",
        "cifar10-vit-quest: embedded:shapes shows arrow, .* but the .*",
    ),
    (f"audit {VIT} --data-dir pics", ".*give a CSV of labels .--labels., or --layout unlabelled for maps alone"),
    (
        f"audit {VIT} --data-dir pics --layout imagenet",
        ".*no labelled image of layout imagenet; give another --la.*",
    ),
    (f"audit {VIT} --data-dir pics --labels no.csv", "no.csv: not a readable CSV of labels .*; check --labels"),
    (f"audit {VIT} --data-dir pics --real-labels no.json", "no.json: not a readable JSON .*; check --real-labels"),
    (f"audit {VIT} {SHAPES} --cams agcam --boxes no.csv", r"no.csv: cannot be read \(No such.*\); check --boxes"),
    (
        f"audit {VIT} {SHAPES} --limit 3 --attacks none --out run",
        "run .*: images, labels or .*--limit, --ids.*",
    ),
    (
        f"audit {VIT} {SHAPES} --img-size 32 --out run",
        r".*VIT is {'input_size': \[64, 64\]} there and {.*",
    ),
    (f"segment {VIT} {SHAPES}", ".*not a Segmenter .*; a classifier is for robustkit audit"),
    ("completion", "Missing argument 'SHELL'. Choose from: bash, zsh, fish. See robustkit completion --help."),
    ("doctor twice", r"Got unexpected extra argument \(twice\). See robustkit doctor --help."),
    (f"audit {VIT} {SHAPES} --config table.toml", "--config table.toml: audit is 3; expected a table of its options"),
]
FINE = (
    f"audit {VIT} {SHAPES} --config lists.toml --out lists",
    f"segment {SEG} --data-dir pics --masks masks --ignore '' --attacks none --limit 1 --examples 0 --out scenes",
    f"inspect {VIT}",
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, masks, files of options, and a run of two samples."""
    place = tmp_path_factory.mktemp("desk")
    for name, value in (("pics", 90), ("masks", 1)):
        (place / name).mkdir()
        for index in range(2):
            Image.fromarray(np.full((64, 64, 3)[: 3 - (name == "masks")], value, np.uint8)).save(
                place / name / f"{index}.png"
            )
    (place / "table.toml").write_text("audit = 3\n")
    (place / "lists.toml").write_text('attacks = ["fgsm", "pgd(steps=1)"]\nmean = [0.5, 0.5, 0.5]\nlimit = 2\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert call(f"audit {VIT} {SHAPES} --limit 2 --attacks none --out run", patch) == 0
    return place


def call(words: str, patch: pytest.MonkeyPatch) -> object:
    """The exit status of the console script."""
    patch.setattr(sys, "argv", ["robustkit", *shlex.split(words)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


@pytest.mark.parametrize(("words", "line"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_words_are_one_line(
    words: str, line: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    assert call(words, monkeypatch) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(f"error: (Invalid value for )?{line.replace('VIT', VIT[4:])}\n", said), said


@pytest.mark.parametrize("words", FINE)
def test_right_words_are_understood(
    words: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("ROBUSTKIT_KEEP_MISCLASSIFIED", "1")  # what is for every command is not a mistake of this one
    monkeypatch.setenv("ROBUSTKIT_LIMIT", "2")
    assert call(words, monkeypatch) == 0, capsys.readouterr().err
    if "lists" in words:
        assert "PGD, 1/255, 1 step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("segment {folder}", "{folder}: a folder in the layout of transformers; expected a file, or hf:{folder}"),
        ("audit {folder}", "{folder}: a folder in the layout of transformers; expected a file, or hf:{folder}"),
        ("audit hf:{folder}", "hf:{folder} is a segmenter; evaluate it with robustkit segment, or load_segmenter"),
        ("audit {folder}/model.safetensors", ".*a decoder; segmenters are for robustkit segment; .*"),
        (f"audit {SEG}", f"{SEG} is a segmenter; evaluate it with robustkit segment, or load_segmenter"),
    ],
)
def test_another_kind_of_checkpoint_is_told_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"]}', "utf-8"
    )
    save_file({"decode_head.classifier.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(sys, "argv", ["robustkit", *words.format(folder=tmp_path).split(), *SHAPES.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert re.fullmatch(f"error: {said.format(folder=tmp_path)}\n", capsys.readouterr().err)
