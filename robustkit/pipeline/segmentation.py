"""Plan a run of segmenters: checkpoints, labelled scenes, attacks and corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..common.options import read_labels
from ..common.plugins import of_slice
from ..errors import NothingEvaluated, ProtocolError
from ..evaluations.answers import ask_image
from ..evaluations.family import family_of
from ..models.identity import distinct_names
from ..models.segmenter import load_segmenter
from ..protocol.condition import Condition
from ..report.refresh import rebuild_summary, write_page
from ..report.run import Run
from ..tasks.segmentation.pictures import FILE, draw_examples
from ..tasks.segmentation.subject import SceneImages, SegmenterSubject, scenes_for
from .manifest import describe
from .plan import Plan, PlannedCheckpoint, plan_corrupted
from .request import SegmentationRequest


def plan(request: SegmentationRequest) -> Plan:
    """Return all that a run of segmenters needs. Raises RobustkitError for anything that is wrong with the request."""
    card = request.card
    attacked, settings = request.attack_conditions(request.attack_list), request.settings
    models = [load_segmenter(spec, **request.model) for spec in request.checkpoints]
    distinct_names(models)
    identities = [model.identity for model in models]
    ignored = read_labels([request.ignore] if isinstance(request.ignore, int) else request.ignore)
    where = request.data_dir, request.masks, request.classes, ignored, request.layout, request.reduce_zero_label
    scenes = scenes_for(identities, *where)
    scenes = scenes.select(request.limit, None if request.ids is None else Path(request.ids), request.seed)
    if not len(scenes):
        raise NothingEvaluated(f"{request.data_dir}: no sample is left to evaluate; relax --limit or --ids")
    attacked, corruptions, inputs, more = plan_corrupted(request, attacked, scenes.dataset)
    conditions = (*attacked, *corruptions, *_of_pixels_in_place(request.evaluation_conditions()))
    if request.cams is not None:
        conditions += of_slice("maps_of_classes", "--cams")(request, conditions, models, scenes)
    run = Run(request.folder(identities[0].name))
    notes = (f"{identity.name}: {note}" for identity in identities for note in identity.notes)

    def finish() -> None:
        (run.path / FILE).unlink(missing_ok=True)  # of other checkpoints, or no longer wanted
        rows = rebuild_summary(run)
        counted = any(row.is_finite for row in rows if row.metric == "miou")
        try:
            if request.examples and counted:
                draw_examples(run, models, scenes, conditions, card, settings, request.examples)
                if request.cams is not None:
                    of_slice("draw_maps_of_classes", "--cams")(run, models, scenes, conditions, request)
        finally:  # once, with the examples
            write_page(run, rows)
        if not counted:
            raise NothingEvaluated(f"{request.data_dir}: no pixel of any image counts; check --masks and --ignore")

    return Plan(
        request=request,
        run=run,
        contenders=tuple(
            PlannedCheckpoint(
                describe(model.identity, model.identity.preprocessing, windows=model.windows),
                partial(SegmenterSubject, model, card, unjudged=scenes.unjudged, shift=scenes.shift),
                SceneImages(scenes, model.network.windows),
                question=partial(ask_image, model),
            )
            for model in models
        ),
        conditions=conditions,
        dataset=replace(scenes.dataset, class_names=scenes.class_names),
        digest=scenes.digest,
        finish=finish,
        inputs=inputs,
        lines=tuple(dict.fromkeys((*notes, *scenes.notes, *more))),
        unjudged=tuple(scenes.unjudged),
        checks_setup=request.setup_check,
    )


def _of_pixels_in_place(conditions: Sequence[Condition]) -> Sequence[Condition]:
    """Return conditions. Raise ProtocolError for one under which masks may no longer fit the images."""
    for condition in conditions:
        family = family_of(condition.name)
        if not family.evaluator.keeps_places:
            raise ProtocolError(
                f"--evaluations {condition.text}: masks may not fit what {family.name} show; expected attacks, "
                "corruptions, or a family that says keeps_places = True"
            )
    return conditions
