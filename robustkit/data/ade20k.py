"""ADE20K's scene parsing benchmark (Zhou et al., CVPR 2017): its 150 classes, and the folders that it comes in."""

from __future__ import annotations

from pathlib import Path

from ..errors import DataError

# The first noun of each line of objectInfo150.txt; its line 90 says "television" in later editions.
_NAMES = """
wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person, earth, door,
table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field, armchair,
seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion, base, box, column, signboard, chest of drawers,
counter, sand, sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table, pillow,
screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench, countertop,
stove, palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel, light, truck,
tower, chandelier, awning, streetlight, booth, television receiver, airplane, dirt track, apparel, pole, land,
bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy, washer,
plaything, swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven, ball, food, step, tank,
trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket, sculpture, hood, sconce, vase, traffic
light, tray, ashcan, fan, pier, crt screen, plate, monitor, bulletin board, shower, radiator, glass, clock, flag
"""
CLASSES = tuple(" ".join(name.split()) for name in _NAMES.split(","))
FIRST = 1  # the label of the first class; 0 is everything else, and does not count
_SPLITS = ("validation", "training")


def find(place: Path) -> tuple[str, Path, Path] | None:
    """Return the split, its folder of images and its folder of masks; None where the names are not those of ADE20K.

    place: ADEChallengeData2016, the folder around it, its `images`, or one split's folder of images. The validation
    split is taken before the training split. Raises DataError for a split without masks.
    """
    wanted: tuple[str, ...] = _SPLITS
    if place.name in _SPLITS and place.parent.name == "images":
        wanted, place = (place.name,), place.parent
    root = place.parent if place.name == "images" else place
    for folder in (root, root / "ADEChallengeData2016"):
        split = next((name for name in wanted if (folder / "images" / name).is_dir()), None)
        if split is None or not (folder / "annotations").is_dir():
            continue
        images, masks = (folder / kind / split for kind in ("images", "annotations"))
        if not masks.is_dir():
            raise DataError(f"{masks}: no such folder; ADE20K keeps there the masks of {images}")
        return split, images, masks
    return None
