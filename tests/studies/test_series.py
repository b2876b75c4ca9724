"""Training classifiers of time series, and the page of what came out."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from series_files import write_ts

from robustkit.slices.series.files import open_series
from robustkit.slices.series.model import load_series
from scripts.studies.series import page, ship, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("whole_figures")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    for name in ("Made_TRAIN.ts", "Made_TEST.ts"):
        write_ts(root / name, [0, 1, 2] * 4)
    words = ["--train", str(root / "Made_TRAIN.ts"), "--test", str(root / "Made_TEST.ts"), "--epochs", "12"]
    assert train.main([*words, "--attention", "quest", "--seeds", "3-4", "--out", str(root / "one")]) == 0
    assert train.main([*words, "--attention", "quest", "--seeds", "3", "--out", str(root / "two")]) == 0
    return root


def test_statistics_are_over_all_steps_of_all_series() -> None:
    series = [np.array([[1, 2, 3], [7, 7, 7]], np.float32), np.array([[6], [7]], np.float32)]
    assert train.channel_statistics(series) == ((3.0, 7.0), (pytest.approx(3.5**0.5), 1.0))


def test_a_training_learns_is_repeated_to_the_byte_and_loads(trained: Path) -> None:
    name = "made-quest-3"
    first, again = ((trained / folder / f"{name}.safetensors").read_bytes() for folder in ("one", "two"))
    assert first == again and first != (trained / "one" / "made-quest-4.safetensors").read_bytes()
    log = json.loads((trained / "one" / f"{name}.json").read_text())
    assert len(log["loss"]) == 12 and log["loss"][-1] < log["loss"][0] and len(log["right"]) == 2  # 10 and the last
    model = load_series(trained / "one" / f"{name}.safetensors")
    data = open_series(trained / "Made_TEST.ts", model.identity.class_names)
    answers = [model(torch.from_numpy(data.source.series(one))[None]).argmax().item() for one in data.samples]  # type: ignore[attr-defined]
    right = sum(answer == one.label for answer, one in zip(answers, data.samples, strict=True))
    assert right == log["right"][-1] and model.identity.metadata["accuracy"] == f"{right / 12:.4f}"


def test_what_is_there_is_not_trained_again(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "run", lambda *given: pytest.fail("trained again"))
    words = ["--train", str(trained / "Made_TRAIN.ts"), "--test", str(trained / "Made_TEST.ts"), "--seeds", "3-4"]
    assert train.main([*words, "--attention", "quest", "--out", str(trained / "one")]) == 0


def test_a_shipped_model_is_half_as_large_and_as_right(trained: Path, tmp_path: Path) -> None:
    path = trained / "one" / "made-quest-3.safetensors"
    test = open_series(trained / "Made_TEST.ts", load_series(path).identity.class_names)
    shipped = ship.ship(path, test, tmp_path)
    assert shipped.name == "series-made-quest.safetensors" and shipped.stat().st_size < 0.52 * path.stat().st_size
    entry = json.loads((tmp_path / "checkpoints.json").read_text())["series-made-quest"]
    assert entry["task"] == "series" and entry["accuracy"] == pytest.approx(
        float(load_series(path).identity.metadata["accuracy"]), abs=1e-4
    )


def test_the_page_compares_by_seed_and_keeps_choice_on_test_data_apart(tmp_path: Path) -> None:
    rates = {"standard": (80, 82, 84, 86, 88), "quest": (90, 92, 93, 96, 98), "qnorm": (80, 84, 82, 88, 86)}
    with (tmp_path / "accuracies.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["data", "attention", "seed", "condition", "accuracy"])
        for formula, counts in rates.items():
            rows.writerows(
                ["JapaneseVowels", formula, seed, text, count / 100 - (text != "clean") * 0.1]
                for seed, count in enumerate(counts)
                for text in ("clean", "jitter(sigma=0.5)", "pgd(eps=0.1,steps=20)")
            )
    logs = [
        {"data": "JapaneseVowels", "attention": formula, "seed": seed, "n": 100, "loss": [1.0], "right": [99, count]}
        for formula, counts in rates.items()
        for seed, count in enumerate(counts)
    ]
    (tmp_path / "trainings.jsonl").write_text("\n".join(map(json.dumps, logs)))
    text = page.text(tmp_path)
    table = {
        row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]]
        for row in text.splitlines()
        if row.startswith("| ")
    }
    # Differences 10, 10, 9, 10, 10: mean 9.8, standard error 0.2, t of 4 degrees of freedom 2.776.
    assert table["quest"] == ["5", "93.8 ± 3.2", "+9.8 [+9.2, +10.4]", "0.00", "99.0 ± 0.0", "98.38"]
    assert (
        table["standard"][1] == "84.0 ± 3.2" and table["qnorm"][2].startswith("+0.0 [−") and table["qnorm"][3] == "1.00"
    )
    assert "quest and standard differ beyond chance" in text and "Not trained: Handwriting." in text
    assert table["`jitter(sigma=0.5)`"] == ["74.0 ± 3.2", "74.0 ± 3.2", "–", "83.8 ± 3.2 ↑"]
    assert "3 of 6 comparisons with standard attention are beyond chance" in text
    assert (tmp_path / "JapaneseVowels.svg").read_text().startswith("<svg")
