"""What the sample browser of a report shows of one sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Answer:
    """A prediction. right: None where that is unknown. said: class and confidence. level: of the condition. place: the
    index of the condition in `Browser.conditions`, -1 for clean.
    """

    right: bool | None
    said: str
    level: str = ""
    place: int = -1


class Tile(NamedTuple):
    """A picture. said: what it shows, in words. place: of the condition that it is of, as of an answer. changed:
    whether it is what an attack changed.
    """

    uri: str
    said: str
    place: int = -1
    changed: bool = False


@dataclass(frozen=True)
class Cell:
    """A checkpoint under a condition: its own pictures, a line under them, its answers."""

    pictures: tuple[Tile, ...] = ()
    line: str = ""
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Line:
    """Conditions that share a line. picture: where all checkpoints were shown the same. places: as of an answer; of a
    map, of the condition that it is over. role: `shown`, or `map`.
    """

    heading: str
    cells: tuple[Cell, ...]
    picture: Tile | None = None
    places: tuple[int, ...] = ()
    role: str = "shown"


@dataclass(frozen=True)
class SampleView:
    """One sample. label: its class. before: for each checkpoint 1 where it is right when clean, 0 where wrong, - where
    unknown. after: the same for each checkpoint, a sign for each of `Browser.conditions`. changed: indices of those
    under which a checkpoint's prediction differs from clean. words: lower case, to search in.
    """

    sample_id: str
    label: str
    thumbnail: str
    clean: str
    before: str
    after: tuple[str, ...]
    changed: tuple[int, ...]
    words: str
    lines: tuple[Line, ...]

    @property
    def weight(self) -> int:
        """The number of characters of its pictures."""
        tiles = [tile for line in self.lines for cell in line.cells for tile in cell.pictures]
        tiles += [line.picture for line in self.lines if line.picture]
        return len(self.thumbnail) + sum(len(tile.uri) for tile in tiles)
