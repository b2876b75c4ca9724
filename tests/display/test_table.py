"""Tables of the page: what of several checkpoints becomes one table, and which cells stand where."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from robustkit.common.figure import Figure
from robustkit.display.format import MISSING, NOT_FINITE, Cell, count, figure_cell, scaled
from robustkit.display.html import html_table
from robustkit.display.table import Table, as_csv, as_latex, as_markdown, join_tables, side_by_side


def row(condition: str, *fractions: float | None) -> tuple[str, ...]:
    return (condition, count(8), *map(scaled, fractions))


HEADINGS = ("condition", "n", "top-1")
FIRST = Table("", HEADINGS, (row("clean", 0.9), row("fog", 0.5)), checkpoint="one", shaded=("top-1",))
SECOND = Table("", (*HEADINGS, "CE"), (row("fog", 0.6, 0.7), row("snow", 0.4, None)), ("odd",), checkpoint="two")


def shades(table: Table) -> dict[tuple[int, int], float]:
    places = ((at, column) for at in range(len(table.rows)) for column in range(len(table.headings)))
    return {place: round(shade, 6) for place in places if (shade := table.shade(*place)) is not None}


def test_one_checkpoint_keeps_its_table() -> None:
    (table,) = side_by_side("results", [FIRST], headline="top-1", note="why")
    assert (table.headings, table.rows, table.note) == (HEADINGS, FIRST.rows, "why")
    assert shades(table) == {(0, 2): 0.1, (1, 2): 0.5} and shades(replace(table, dark="high")) == {
        (0, 2): 0.9,
        (1, 2): 0.5,
    }


def test_checkpoints_stand_side_by_side_and_what_one_lacks_is_a_dash() -> None:
    short, whole = side_by_side("results", [FIRST, SECOND], headline="top-1", note="why")
    assert short.title == "results: top-1" and short.headings == ("condition", "one", "two")
    assert short.rows == (("clean", "90.0", "–"), ("fog", "50.0", "60.0"), ("snow", "–", "40.0"))
    assert sorted(shades(short)) == [(0, 1), (1, 1), (1, 2), (2, 2)]
    assert (short.flags, short.note, short.folded) == (("odd",), "why", False)
    assert (whole.title, whole.folded, whole.flags, whole.note) == ("results: all figures", True, (), "")
    assert whole.headings == ("condition", "checkpoint", "n", "top-1", "CE") and whole.keys == 2
    assert whole.rows == (
        ("clean", "one", "8", "90.0", "–"),
        ("fog", "one", "8", "50.0", "–"),
        ("fog", "two", "8", "60.0", "70.0"),
        ("snow", "two", "8", "40.0", "–"),
    )
    assert whole.repeats == {2} and whole.numeric == {2, 3, 4} and (2, 4) not in shades(whole)


def test_headings_and_rows_that_occur_twice_stay_apart() -> None:
    first = Table("", ("under", "IoU", "n", "IoU"), (("fog", "1", "2", "3"), ("fog", "4", "5", "6")), checkpoint="one")
    (table,) = side_by_side("stable", [first, replace(first, rows=first.rows[:1], checkpoint="two")])
    assert table.headings == ("under", "checkpoint", "IoU", "n", "IoU")
    assert table.rows == (("fog", "one", "1", "2", "3"), ("fog", "two", "1", "2", "3"), ("fog", "one", "4", "5", "6"))


def test_tables_that_differ_only_in_their_checkpoint_become_one() -> None:
    rows = (("cat", scaled(0.5)),)
    tables = [
        Table("one: weak", ("class", "IoU"), rows, note="a", checkpoint="one", shaded=("IoU",)),
        Table("two: weak", ("class", "IoU"), rows, checkpoint="two"),
        Table("two: weak", ("class", "IoU"), rows),  # about no checkpoint
    ]
    both, alone = join_tables(tables)
    assert (both.title, both.note, shades(both)) == ("Weak", "a", {(0, 2): 0.5, (1, 2): 0.5})
    assert both.rows == (("cat", "one", "50.0"), ("cat", "two", "50.0"))
    assert (alone.title, alone.rows) == ("two: weak", rows)
    assert join_tables(tables[:1]) == tables[:1]
    (nll,) = join_tables([replace(each, title=f"{each.checkpoint}: mIoU") for each in tables[:2]])
    assert nll.title == "mIoU"


def test_columns_without_anything_are_left_out_keys_are_not() -> None:
    table = Table("t", ("key", "none", "some", "dash"), (("", "", "1", MISSING), ("", MISSING, "", MISSING)))
    assert table.without_empty() == replace(table, headings=("key", "some"), rows=(("", "1"), ("", "")))
    assert replace(table, rows=()).without_empty().headings == ("key",)


def test_numbers_stand_on_the_right_and_texts_that_look_like_one_do_not() -> None:
    rows = (("a", scaled(0.5), "0 of 2", NOT_FINITE, ""), ("b", MISSING, "1/2", MISSING, ""))
    assert Table("t", ("c",) * 5, rows).numeric == {1, 3, 4}
    assert Table("t", ("c",) * 5, rows, keys=2).numeric == {3, 4}


@pytest.mark.parametrize(("value", "shade"), [(-0.1, 1.0), (0.0, 1.0), (1.0, 0.0), (1.2, 0.0), (float("nan"), None)])
def test_a_shade_stays_between_white_and_dark(value: float, shade: float | None) -> None:
    table = Table("t", ("c", "x"), (("a", Cell("?", value)),), shaded=("x",))
    assert table.shade(0, 1) == shade and replace(table, shaded=()).shade(0, 1) is None
    assert replace(table, rows=(("a", "text"),)).shade(0, 1) is None


def test_a_table_in_html_has_its_heads_its_lines_and_no_markup_of_others() -> None:
    rows = (("<i>", scaled(0.25), "⚑ odd"), ("<i>", scaled(0.5), "so"))
    table = Table(
        "t", ("condition", "top-1", "flag"), rows, heads=((1, "H<"),), below=((1, "why&"),), shaded=("top-1",)
    )
    text = html_table(table)
    assert text.splitlines() == [
        "<table>",
        '<thead><tr><th scope="col">condition</th><th scope="col" class="num">top-1</th><th scope="col">flag</th>'
        "</tr></thead>",
        "<tbody>",
        '<tr><th scope="row" class="plain">&lt;i&gt;</th><td class="num heat" style="--heat: 52%">25.0</td>'
        '<td class="flag">⚑ odd</td></tr>',
        '<tr><th scope="rowgroup" colspan="3">H&lt;</th></tr>',
        '<tr class="again"><th scope="row" class="plain">&lt;i&gt;</th>'
        '<td class="num heat" style="--heat: 35%">50.0</td><td class="text">so</td></tr>',
        '<tr><td colspan="3">why&amp;</td></tr>',
        "</tbody>",
        "</table>",
    ]


def test_numbers_and_names_are_written_by_their_own_writers() -> None:
    table = Table("t", ("checkpoint", "top-1", "why"), (("net", scaled(0.25), "so"),))
    text = html_table(table, *(lambda cell, sign=sign: f"{sign}{cell}" for sign in "wn#"))
    assert re.findall(r">([wn#]\S*?)</t[dh]>", text.splitlines()[-3]) == ["nnet", "#25.0", "nso"]


def test_marks_intervals_and_signs_are_of_the_format() -> None:
    """The best is bold, close to it underlined, a doubt has a dagger; intervals stay outside of marks."""
    best, close, plain = (figure_cell(Figure(v, 9, v - 0.1, v + 0.1), 1, sign="+", digits=1) for v in (0.3, -0.2, 0.5))
    best.mark, close.mark, close.flagged = "best", "close", True
    half = figure_cell(Figure(0.5, 9, float("nan"), 0.6))
    half.flagged = True
    table = Table("a_b", ("what", "x & y"), (("=p", best), ("q", close), ("r", plain), ("s", half), ("t", MISSING)))
    assert [cell.alone for cell in (best, close, half, MISSING)] == ["+0.3", "−0.2", "50.0", "–"]
    assert as_markdown(table).splitlines()[2:] == [
        r"| =p | **+0.3** [+0.2, +0.4] |",
        "| q | <u>−0.2</u>† [−0.3, −0.1] |",
        "| r | +0.5 [+0.4, +0.6] |",
        "| s | 50.0† |",
        "| t | – |",
    ]
    assert as_latex(table, "tab:x").splitlines()[3:] == [
        r"\caption{a\_b}",
        r"\label{tab:x}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"what & x \& y \\",
        r"\midrule",
        r"=p & \textbf{+0.3} {\scriptsize [+0.2, +0.4]} \\",
        r"q & \underline{$-$0.2}\textsuperscript{\textdagger} {\scriptsize [$-$0.3, $-$0.1]} \\",
        r"r & +0.5 {\scriptsize [+0.4, +0.6]} \\",
        r"s & 50.0\textsuperscript{\textdagger} \\",
        r"t & \textendash{} \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    rows = re.findall('<td class="num">(.*?)</td>', html_table(table))
    assert rows == [
        "<b>+0.3</b> [+0.2, +0.4]",
        "<u>−0.2</u><sup>†</sup> [−0.3, −0.1]",
        "+0.5 [+0.4, +0.6]",
        "50.0<sup>†</sup>",
        "–",
    ]
    whole = "what,x & y,x & y low,x & y high\n'=p,+0.3,+0.2,+0.4\nq,-0.2,-0.3,-0.1\nr,+0.5,+0.4,+0.6\ns,50.0,,\nt,–,,\n"
    assert as_csv(table, True) == whole
    assert as_csv(replace(table, rows=table.rows[2:4]), False) == "what,x & y\nr,+0.5\ns,50.0\n"


def test_lines_above_and_below_rows_are_kept_in_every_format() -> None:
    rows = (("a", Cell("50.0")), ("b", Cell("40.0").followed_by(" (1–3)")), ("a", Cell("30.0")))
    rows[1][1].mark, rows[2][1].flagged = "best", True
    noted = rows[1][1].followed_by("!")
    assert (noted, noted.mark, noted.flagged) == ("40.0 (1–3)!", "best", False)
    assert rows[2][1].followed_by("!").flagged
    table = Table("t", ("what", "x"), rows, heads=((0, "P&D"), (2, "F")), below=((1, "so | so"), (2, "or so")))
    assert as_markdown(table).splitlines()[2:] == [
        *("| **P&#38;D** |  |", "| a | 50.0 |", "| b | **40.0 (1–3)** |", "| so &#124; so |  |"),
        *("| **F** |  |", "| a | 30.0† |", "| or so |  |"),
    ]
    assert as_latex(table, "l").splitlines()[9:-3] == [
        *(r"\textbf{P\&D} &  \\", r"a & 50.0 \\", r"b & \textbf{40.0 (1\textendash{}3)} \\"),
        *(r"so \textbar{} so &  \\", r"\textbf{F} &  \\", r"a & 30.0\textsuperscript{\textdagger} \\"),
        r"or so &  \\",
    ]
    assert as_csv(table, False) == ",what,x\nP&D,a,50.0\nP&D,b,40.0 (1–3)\nF,a,30.0\n"
