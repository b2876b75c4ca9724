"""Models of time series: what filled up a batch has no part, and what a file says is believed within bounds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from series_files import CHANNELS, MEAN, STD, furnish

from robustkit.errors import CheckpointError, ModelError
from robustkit.models.classifier import load
from robustkit.slices.series.model import ARCH, SeriesTransformer, load_series, positions

SMALL: dict[str, Any] = {"channels": 2, "num_classes": 3, "dim": 16, "depth": 2, "heads": 2, "hidden": 8}


def small(attention: str = "quest") -> SeriesTransformer:
    torch.manual_seed(0)
    network = SeriesTransformer(**SMALL, attention=attention).eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network


@pytest.mark.parametrize("attention", ["standard", "qnorm", "qknorm", "qknorm-hs", "quest", "qana"])
def test_what_fills_up_a_batch_changes_nothing(attention: str) -> None:
    network, lengths = small(attention), torch.tensor([9, 4, 1, 6])
    batch = torch.randn(4, 2, 9)
    batch[1, :, 4:] = 1e4
    together = network(batch, lengths)
    for place, steps in enumerate(lengths.tolist()):
        alone = network(batch[place : place + 1, :, :steps])[0]
        torch.testing.assert_close(together[place], alone, rtol=1e-5, atol=1e-5)
    assert (network(batch)[1] - together[1]).abs().max() > 1e-3


def test_a_formula_that_averages_over_tokens_takes_no_filled_batch() -> None:
    network = small("elliptical-quest")
    assert network(torch.randn(2, 2, 5), torch.tensor([5, 5])).shape == (2, 3)
    with pytest.raises(ModelError, match="expected a batch of one length, without padding"):
        network(torch.randn(2, 2, 5), torch.tensor([5, 4]))


def test_positions_are_sines_and_cosines() -> None:
    table = positions(3, 4, torch.device("cpu"))
    expected = torch.tensor([[0, 1, 0, 1], [1, 1, 0.01, 0.01], [2, 2, 0.02, 0.02]])
    expected[1:, ::2], expected[1:, 1::2] = expected[1:, ::2].sin(), expected[1:, 1::2].cos()
    torch.testing.assert_close(table, expected)


def saved(path: Path, **changes: str | None) -> Path:
    metadata = {
        "task": "series",
        "arch": ARCH,
        "arch_kwargs": json.dumps(
            {key: value for key, value in SMALL.items() if key not in ("channels", "num_classes")}
        ),
        "attention": "quest",
        "num_classes": "3",
        "class_names": json.dumps(["a", "b", "c"]),
        "mean": json.dumps(MEAN),
        "std": json.dumps(STD),
    }
    kept = {key: value for key, value in (metadata | changes).items() if value is not None}
    save_file(small().state_dict(), path, metadata=kept)
    return path


def test_a_file_says_all_that_is_needed(tmp_path: Path) -> None:
    classifier = load_series(saved(tmp_path / "m.safetensors"))
    identity = classifier.identity
    assert (identity.attention, identity.attention_source, identity.num_classes) == ("quest", "metadata", 3)
    assert identity.class_names == ("a", "b", "c") and identity.preprocessing.mean == MEAN
    series = torch.randn(2, CHANNELS, 6)
    standard = (series - torch.tensor(MEAN)[:, None]) / torch.tensor(STD)[:, None]
    torch.testing.assert_close(classifier(series), small()(standard))
    other = load_series(tmp_path / "m.safetensors", attention="standard", std=(1.0, 1.0))
    assert other.identity.attention == "standard" and other.identity.preprocessing.std == (1.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean": None}, "nothing says the mean of each channel in its training data; give --mean with a number for"),
        ({"std": "[1.0]"}, "2 means and 1 standard deviations, the smallest 1; expected one above 0 for each channel"),
        ({"std": "[1.0, 0.0]"}, "standard deviations from 0 to 1; expected finite numbers, the deviations above 1e-30"),
        ({"std": "[1e999, 1]"}, "standard deviations from 1 to inf; expected finite numbers"),
        ({"mean": "[1e999, 0]"}, "means from 0 to inf, .*; check --mean and --std"),
        ({"mean": '["x", 1]'}, "mean is \\['x', 1\\]; expected a number for each channel"),
        ({"arch": "os:system"}, "no architecture of series .the file says 'os:system'.; expected series-transf"),
        ({"task": "segmentation"}, "is a model for segmentation; expected one of time series"),
        ({"num_classes": "4"}, "head.bias \\[3\\] for \\[4\\]"),
        ({"arch_kwargs": '{"depth": 65000}'}, "its metadata describe a network many times larger than"),
        ({"arch_kwargs": '{"heads": 3}'}, "series-transformer cannot be built with .*; check arch_kwargs"),
        ({"arch_kwargs": '{"colour": 3}'}, "series-transformer cannot be built with .*; check arch_kwargs"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(
    changes: dict[str, str | None], said: str, tmp_path: Path
) -> None:
    with pytest.raises((ModelError, CheckpointError), match=said) as refused:
        load_series(saved(tmp_path / "m.safetensors", **changes))
    assert "\n" not in str(refused.value)


def test_a_factory_of_the_users_own(tmp_path: Path) -> None:
    furnish(tmp_path)
    arch = f"{tmp_path / 'net.py'}:build"
    classifier = load_series(tmp_path / "net.pth", arch=arch, num_classes=3, mean=MEAN, std=STD)
    weights = torch.load(tmp_path / "net.pth", weights_only=True)
    series = torch.randn(2, CHANNELS, 5)
    means = (series.mean(dim=2) - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(classifier(series), means @ weights["head.weight"].T + weights["head.bias"])
    assert classifier.identity.attention == "none" and classifier.identity.code_sha256
    with pytest.raises(CheckpointError, match="does not fit Linear"):
        load_series(tmp_path / "net.pth", arch=arch, num_classes=3, mean=(0.0,), std=(1.0,))


def test_commands_for_images_name_the_other_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a checkpoint of task series; evaluate it with robustkit series"):
        load(saved(tmp_path / "m.safetensors"))
