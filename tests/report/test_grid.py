"""Tables of the page: what of several checkpoints becomes one table, and which cells stand where."""

from robustkit.display.table import Portion, TextTable, join_tables, side_by_side

HEADINGS = ("condition", "n", "top-1")
FIRST = Portion("one", HEADINGS, (("clean", "8", "90.0"), ("fog", "8", "50.0")), {(0, 2): 0.9, (1, 2): 0.5})
SECOND = Portion(
    "two", (*HEADINGS, "CE"), (("fog", "8", "60.0", "70"), ("snow", "8", "40.0", "–")), {(0, 2): 0.6}, ("odd",)
)


def test_one_checkpoint_keeps_its_table() -> None:
    (grid,) = side_by_side("results", [FIRST], headline="top-1", note="why")
    assert (grid.headings, grid.rows, grid.note) == (HEADINGS, FIRST.rows, "why")
    assert {place: round(shade, 6) for place, shade in (grid.shades or {}).items()} == {(0, 2): 0.1, (1, 2): 0.5}


def test_checkpoints_stand_side_by_side_and_what_one_lacks_is_a_dash() -> None:
    short, whole = side_by_side("results", [FIRST, SECOND], headline="top-1")
    assert short.title == "results: top-1" and short.headings == ("condition", "one", "two")
    assert short.rows == (("clean", "90.0", "–"), ("fog", "50.0", "60.0"), ("snow", "–", "40.0"))
    assert sorted(short.shades or {}) == [(0, 1), (1, 1), (1, 2)] and short.flags == ("odd",) and not short.folded
    assert whole.folded and whole.headings == ("condition", "checkpoint", "n", "top-1", "CE") and whole.keys == 2
    assert whole.rows == (
        ("clean", "one", "8", "90.0", "–"),
        ("fog", "one", "8", "50.0", "–"),
        ("fog", "two", "8", "60.0", "70"),
        ("snow", "two", "8", "40.0", "–"),
    )
    assert whole.repeats == {2} and whole.numeric == {2, 3, 4}


def test_headings_and_rows_that_occur_twice_stay_apart() -> None:
    part = Portion("one", ("under", "IoU", "n", "IoU"), (("fog", "1", "2", "3"), ("fog", "4", "5", "6")))
    (grid,) = side_by_side("stable", [part, Portion("two", part.headings, part.rows[:1])])
    assert grid.headings == ("under", "checkpoint", "IoU", "n", "IoU")
    assert grid.rows == (("fog", "one", "1", "2", "3"), ("fog", "two", "1", "2", "3"), ("fog", "one", "4", "5", "6"))


def test_tables_that_differ_only_in_their_checkpoint_become_one() -> None:
    rows = (("cat", "0.5"),)
    tables = [
        TextTable("one: weak", ("class", "IoU"), rows, note="a", checkpoint="one"),
        TextTable("two: weak", ("class", "IoU"), rows, values=((0.5,),), checkpoint="two"),
        TextTable("two: weak", ("class", "IoU"), rows),  # about no checkpoint
    ]
    both, alone = join_tables(tables)
    assert (both.title, both.note, both.shades) == ("Weak", "a", {(1, 2): 0.5})
    assert both.rows == (("cat", "one", "0.5"), ("cat", "two", "0.5"))
    assert (alone.title, alone.rows) == ("two: weak", rows)
