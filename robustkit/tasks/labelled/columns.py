"""The columns of records, by what is evaluated."""

from __future__ import annotations

import pyarrow as pa

CLASSIFICATION = pa.schema(
    [
        ("sample_id", pa.string()),
        ("label", pa.int32()),
        ("prediction", pa.int32()),
        ("correct", pa.bool_()),
        ("top5", pa.bool_()),
        ("nll", pa.float32()),
        ("confidence", pa.float32()),
        ("linf", pa.float32()),
        ("l2", pa.float32()),
        ("broken_by", pa.string()),
        ("broken_at", pa.int32()),
        ("steps", pa.int32()),
        ("forwards", pa.int32()),
        ("backwards", pa.int32()),
        ("error", pa.string()),
    ]
)
"""One row per image, for classifiers.

prediction: -1 where the logits are not all finite, which is wrong and has no NLL (NaN).
nll: -log of the probability of the label; where several labels count as right, of the sum of their probabilities.
linf, l2: size of the perturbation that was measured, in pixel units; null for released corrupted files.
broken_by: the attack, where the prediction is wrong after it (also where it was wrong before); for an attack in stages
    the stage, `clean` among them.
broken_at: updates (Square: queries) that the attack, or the run of the stage, had made when it saw that; null if it did
not check. steps, forwards, backwards: what the attack spent on the sample. An attack in stages adds two columns per
stage, `forwards apgd-t` and so on. A map adds `robustkit.evaluations.maps.evaluate.COLUMNS`. error: why an image could
not be read; all but id and label are null then.
"""
