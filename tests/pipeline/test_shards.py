"""The inputs of a shard: read once, given as often as asked, to be written to."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import small_audit
import torch
from stand_in import devices, why_not
from torch import Tensor

from robustkit.data.layouts import Sample
from robustkit.errors import ModelError
from robustkit.evaluations.subject import Evaluation
from robustkit.pipeline import units
from robustkit.pipeline.units import Shard, _Computed
from robustkit.tasks.labelled.subject import CLASSIFICATION


def shard(device: str, *inputs: Tensor | str) -> Shard:
    decoding = []
    for place, given in enumerate(inputs):
        future: Future[Tensor | str] = Future()
        future.set_result(given)
        decoding.append((Sample(str(place), 0), future))
    return Shard(decoding, torch.device(device))


def images(*values: int, size: int = 4) -> list[Tensor]:
    return [torch.full((3, size, size), value, dtype=torch.uint8) for value in values]


@pytest.mark.parametrize("large", [False, True], ids=["kept", "large"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_inputs_are_those_asked_for_whatever_was_written_to_them(
    device: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and (reason := why_not()):
        pytest.skip(reason)
    monkeypatch.setattr(units, "_LARGE", 10 if large else 1 << 30)
    first, second, third = images(1, 2, 3)
    other = images(9, size=6)[0]
    with devices() as seen:
        made = shard(device, first, other, "broken", second, third)
        assert len(made) == 5 and made.read(2)[1:] == ("broken", ())
        for places in ((0, 3), (3, 4), (0, 4), (4, 0), (0, 3, 4)):
            given = made.inputs(places)
            assert given.device.type == device
            assert given[:, 0, 0, 0].tolist() == [{0: 1, 3: 2, 4: 3}[place] for place in places]
            given.zero_()
        assert made.inputs([1])[0, 0].tolist() == other[0].tolist()
        pictures = [shape for shape, _ in seen.uploads.elements() if len(shape) == 4]
    assert len(pictures) == {("cpu", False): 0, ("cpu", True): 0, ("cuda", False): 2, ("cuda", True): 6}[device, large]


def test_rows_of_batches_are_sorted_together_and_lack_what_a_batch_does_not_have() -> None:
    computed = _Computed([{"sample_id": ["c", "a"], "label": [3, 1], "steps": [7, 8]}])
    computed.add(_Computed([{"sample_id": ["b"], "label": [2], "error": ["broken"]}]))
    table = computed.table(CLASSIFICATION, {b"k": b"v"}, {})
    assert table["sample_id"].to_pylist() == ["a", "b", "c"] and table["label"].to_pylist() == [1, 2, 3]
    assert table["steps"].to_pylist() == [8, None, 7] and table["error"].to_pylist() == [None, "broken", None]
    assert table.schema.metadata == {b"k": b"v"}


@pytest.mark.parametrize("surplus", [1, -1])
def test_a_column_of_another_length_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surplus: int
) -> None:
    evaluate = units.evaluate

    def wrong(*given: Any) -> Evaluation:
        done = evaluate(*given)
        done.columns["nll"] = [*done.columns["nll"], 0.5][: len(done.columns["nll"]) + surplus]
        return done

    monkeypatch.setattr(units, "evaluate", wrong)
    with pytest.raises(ModelError, match=rf"column 'nll' has {16 + surplus} values; expected one for each sample"):
        small_audit.audit(place, tmp_path / "run", attacks="none", shard_size=16)
    assert not list((tmp_path / "run" / "records").rglob("*.parquet"))
