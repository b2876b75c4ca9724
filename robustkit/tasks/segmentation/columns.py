"""The columns of records of segmentation."""

from __future__ import annotations

import pyarrow as pa

_COUNTS = pa.list_(pa.int64())

SCENES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("pixels", pa.int64()),
        ("intersections", _COUNTS),
        ("predicted", _COUNTS),
        ("labelled", _COUNTS),
        ("nll", pa.float32()),
        ("linf", pa.float32()),
        ("l2", pa.float32()),
        ("steps", pa.int32()),
        ("forwards", pa.int32()),
        ("backwards", pa.int32()),
        ("error", pa.string()),
    ]
)
"""One row per image, for segmenters.

pixels: how many count, that is, are labelled with a class. nll: its mean over them; null where there are none.
intersections, predicted, labelled: for each class, how many of these pixels are predicted right, predicted as it, and
labelled as it. `intersections js`, `predicted js` and so on: the same at the worst point of each run of an attack that
makes several. error: why the image or its mask could not be read or used; all but the id is null then.
"""
BY_RUN = ("intersections", "predicted")
