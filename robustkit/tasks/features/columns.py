"""The columns of records of features."""

from __future__ import annotations

import pyarrow as pa

FEATURES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("label", pa.int32()),
        ("knn", pa.int32()),
        ("probe", pa.int32()),
        ("precision", pa.float32()),
        ("moved", pa.float32()),
        ("linf", pa.float32()),
        ("l2", pa.float32()),
        ("steps", pa.int32()),
        ("forwards", pa.int32()),
        ("backwards", pa.int32()),
        ("error", pa.string()),
    ]
)
"""One row per image.

knn: the class that the k nearest training images vote for, k as run.json has it; `knn 5` and so on: those of each k.
probe: the class that the linear probe predicts. `few_shot 1 0` and so on: that of a head which learned from so many
images of each class, for each draw. All are -1 where features are not finite.
precision: the average precision with which training images of the same class are retrieved; 0 where features are not
finite. moved: 1 minus the cosine between the features and those of the clean image; nan where features are not finite.
linf, l2: size of the perturbation that was measured, in pixel units. steps, forwards, backwards: what an attack spent.
error: why an image could not be read; all but id and label are null then.
"""
