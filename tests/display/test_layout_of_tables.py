"""Tables in a terminal: figures are never cut or wrapped, and what is left out is named."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from robustkit.display.console import print_line, print_tables, shorten, table_lines, width_of, wrap
from robustkit.display.format import Cell, size_text
from robustkit.display.table import Table

NUMBER = re.compile(r"[-+−]?\d[\d.,]*(?:e[-+]?\d+)?")
LONG = "resnet_with_a_checkpoint_name_of_far_more_than_sixty_characters_v2"
CONDITIONS = ("clean", "autoattack(eps=4/255,steps=10,targets=3,queries=100,seed=12)", "pgd(eps=0.5/255,steps=1000)")


def results(names: tuple[str, ...] = ("a", LONG)) -> Table:
    """Return a table such as an audit's, each figure in it another one."""
    headings = ("checkpoint", "condition", "n", "top-1 % [95 %]", "top-5 %", "NLL", "ECE %", "largest |δ|")
    rows = []
    for name in names:
        for condition in CONDITIONS:
            k = len(rows)
            top = f"{90 - k}.3 [{80 - k}.1, {97 - k}.{k}]"
            numbers = (f"{1000 + k}", top, f"{99 - k}.5", f"{k}.017", f"{k}.4", f"{k + 1}.988/255")
            rows.append((name, condition, *map(Cell, numbers)))
    return Table("title", headings, tuple(rows), spare=("largest |δ|", "ECE %", "n"))


def text_of(table: Table, width: int, elsewhere: str = "summary.csv") -> str:
    return "\n".join(line.text for line in table_lines(table, width, elsewhere))


def numbers(texts: list[str]) -> list[str]:
    return sorted(number for text in texts for number in NUMBER.findall(text))


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100, 200])
@pytest.mark.parametrize("names", [("a", LONG), ("a",), tuple(f"net-{k}" for k in range(5))])
def test_every_figure_is_whole_or_its_column_is_named(width: int, names: tuple[str, ...]) -> None:
    table = results(names)
    text = text_of(table, width)
    gone = re.search(r"not shown: (.*?) \(in summary\.csv", text.replace("\n", " "))
    left_out = gone[1].split(", ") if gone else []
    assert set(left_out) <= set(table.spare) and (width < 200 or not left_out)
    body = text.partition("not shown:")[0]
    for place, heading in enumerate(table.headings[2:], start=2):
        cells = [row[place] for row in table.rows]
        # Wrapped cells would not be found: a figure, with its interval, stands in one line.
        assert all((f" {cell}" in body) == (heading not in left_out) for cell in cells), heading
    assert max(map(width_of, text.splitlines())) <= width
    assert all(name in re.sub(r"\s", "", body) for name in names) and "autoattack(" in body


def test_columns_without_worth_are_left_out_in_their_order() -> None:
    seen = []
    for width in range(110, 45, -1):
        found = re.search(r"not shown: (.*?) \(", text_of(results(), width).replace("\n", " "))
        seen += [found[1]] if found and found[1] not in seen else []
    assert seen == ["largest |δ|", "largest |δ|, ECE %", "largest |δ|, ECE %, n"]


def test_a_repeated_first_column_becomes_headings_only_where_room_is_short() -> None:
    table = Table(
        "", ("condition", "figure", "value"), (("clean", "top-1", Cell("1.5")), ("clean", "NLL", Cell("0.2")))
    )
    for width in (40, 24):
        assert text_of(table, width).splitlines()[2:] == ["clean      top-1     1.5", "           NLL       0.2"]
    for width in (23, 20):
        assert text_of(table, width).splitlines()[2:] == ["clean", "  top-1     1.5", "  NLL       0.2"]
    rows = (("resnet", "some words in a row here", Cell("1.5")), ("resnet", "NLL", Cell("0.2")))
    wordy = Table("", ("checkpoint", "what it is", "value"), rows)  # rather than wrapped words
    assert text_of(wordy, 40).splitlines()[2:] == [
        *("resnet", "  some words in a row here    1.5", "  NLL                         0.2"),
    ]
    pairs = Table("", ("c", "v"), (("a", Cell("1")), ("a", Cell("2"))))  # a figure each, with its name
    assert text_of(pairs, 20).splitlines()[2:] == ["a  1", "a  2"]


def test_the_last_column_becomes_lines_below_where_no_figure_is_broken() -> None:
    interval = Cell("93.3 [84.1, 97.4]")
    figures, words = (
        Table("", ("", "one", "two"), (("clean", interval, last),)) for last in (interval, "words for a while")
    )
    for width in range(24, 29):
        assert text_of(figures, width).splitlines()[-1] == "clean  93.3 [84.1, 97.4]"
        assert text_of(words, width).splitlines()[2:4] == ["clean  93.3 [84.1, 97.4]", "       two: words for a"]
    assert text_of(figures, 29).splitlines()[2:] == ["clean  93.3 [84.1, 97.4]", "       two: 93.3 [84.1, 97.4]"]


def test_columns_that_all_count_go_into_blocks_and_then_into_lines() -> None:
    interval = Cell("93.3 [84.1, 97.4]")
    table = Table("", ("", "one", "two", "three"), (("clean", interval, interval, Cell("7")),))
    blocks = text_of(table, 31).split("\n\n")
    assert [block.splitlines()[-1].split() for block in blocks] == [
        ["clean", *interval.split()],
        ["clean", *interval.split(), "7"],
    ]
    three = replace(table, rows=(("clean", interval, interval, interval),))
    assert [block.splitlines()[-1] for block in text_of(three, 26).split("\n\n")] == [f"clean  {interval}"] * 3
    assert [text_of(three, width).count("\n\n") for width in (42, 43)] == [2, 0]
    listed = [line for line in text_of(table, 20).splitlines() if line]
    assert listed == ["clean", f"  one: {interval}", f"  two: {interval}", "  three: 7"]


def test_a_single_column_that_does_not_fit_stands_below_its_rows_above_what_is_said_of_them() -> None:
    rows = (("clean", Cell("93.3 [84.1, 97.4]"), ""), ("fog", Cell("9.3 [4.1, 17.4]"), "worse"))
    table = Table("", ("", "value", "verdict"), rows, below=((1, "why it is so, in several words"),))
    assert text_of(table, 40).splitlines()[2:] == [
        *("clean  93.3 [84.1, 97.4]", "fog      9.3 [4.1, 17.4]  worse"),
        *("       why it is so, in several words",),
    ]
    headed = replace(table, heads=((0, "all"),))  # lines begin below the words of their row
    assert text_of(headed, 60).splitlines()[-1] == "    why it is so, in several words"
    assert text_of(table, 27).splitlines()[2:] == [
        *("clean  93.3 [84.1, 97.4]", "fog      9.3 [4.1, 17.4]", "       verdict: worse"),
        *("       why it is so, in", "         several words"),
    ]


def test_headings_of_several_lines_end_above_the_rule_and_a_column_may_be_empty() -> None:
    table = Table("", ("what", "mean of all", "n", ""), (("fog", Cell("1"), Cell("20"), ""),))
    assert text_of(table, 40).splitlines() == [
        "      mean",
        "        of",
        "what   all   n",
        "────────────────",
        "fog      1  20",
    ]


def test_names_of_rows_are_wrapped_to_few_words_only_where_what_counts_does_not_fit() -> None:
    name = "a name of a row in many short words here and more"
    table = Table("", ("", "one", "two"), ((name, Cell("93.3 [84.1, 97.4]"), Cell("7777777")),), spare=("two",))
    assert text_of(table, 55).splitlines()[2:4] == [
        "a name of a row in many short words   93.3 [84.1, 97.4]",
        "  here and more",
    ]
    assert text_of(table, 54).splitlines()[2] == "a name of a row in many     93.3 [84.1, 97.4]  7777777"


def test_a_line_is_broken_between_words_and_never_inside_a_number() -> None:
    for text in (
        *CONDITIONS,
        LONG,
        "all 11 corruptions: 1234567.25 of 60 [-12.5, +3.75], 7.988/255",
        "x" * 30 + "12345",
    ):
        for width in range(14, 70):
            lines = wrap(text, width, 2)
            assert "".join("".join(lines).split()) == "".join(text.split())
            assert numbers(lines) == numbers([text]), (width, lines)
    assert wrap(CONDITIONS[1], 40, 2) == ["autoattack(eps=4/255,steps=10,targets=3,", "  queries=100,seed=12)"]


def test_a_name_does_not_steer_the_terminal_and_wide_letters_count_twice() -> None:
    console = Console(width=40, file=io.StringIO())
    print_tables(console, [Table("t\x1b[31m", ("a", "b"), (("模型\x1b[2J", Cell("1\x1b")), ("[bold]x", Cell("22"))))])
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "\x1b" not in said and "[bold]x" in said
    assert {width_of(line) for line in said.splitlines() if line[-1:] in "12"} - {0} == {width_of("模型[2J") + 2 + 2}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8 / 255, "8/255"),
        (0.031372550874948, "8/255"),  # 8/255 in float32, after a sum
        (7.9996 / 255, "8/255"),
        (0.03132, "7.987/255"),
        (7.99 / 255 + 1e-6, "7.990/255"),
        (0.5 / 255, "0.5/255"),
        (0.25 / 255, "0.25/255"),
        (0.0009 / 255, "0.0009/255"),
        (0.0014 / 255, "0.001/255"),
        (0.0, "0/255"),
    ],
)
def test_radii_read_as_they_were_meant(value: float, text: str) -> None:
    assert size_text(value, "linf") == text
    assert size_text(0.5, "l2") == "0.5"


def test_what_is_said_once_and_what_stands_above() -> None:
    table = Table("t", ("c", "n", "x"), (("a", "60", "1"), ("a", "", "2"), ("b", "60", "3")))
    once = table.said_once("n")
    assert (once.title, once.headings, once.rows[1]) == ("t; n = 60", ("c", "x"), ("a", "2"))
    assert once.under_heads(["A", "A", "B"]).heads == ((0, "A"), (2, "B"))
    assert Table("t", ("c", "n"), (("a", "1"), ("b", "2"))).said_once("n").headings == ("c", "n")


def test_a_text_that_is_too_long_ends_in_an_ellipsis() -> None:
    assert [shorten("abcd 1.25", width) for width in (9, 8, 7, 2, 1, 0)] == [
        "abcd 1.25",
        "abcd …",
        "abcd …",
        "…",
        "…",
        "",
    ]


def test_a_line_as_wide_as_the_terminal_is_one_and_a_word_has_its_colour() -> None:
    file = io.StringIO()
    console = Console(width=11, file=file, force_terminal=True, color_system="standard")
    print_line(console, "ten or more")
    print_line(console, "later lines are indented")
    print_tables(console, [Table("", ("what", "n"), (("fail", Cell("1")),))], words={"fail": "red"})
    lines = file.getvalue().splitlines()
    assert lines[:4] == ["ten or more", "later lines", "  are", "  indented"] and "\x1b[31mfail\x1b[0m  1" in "\n".join(
        lines
    )


def test_logs_are_not_wrapped_unless_a_width_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    text, longest = "a sentence of " + "many " * 20 + "words", {}
    for columns in ("", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        for terminal in (False, True):
            file = io.StringIO()
            print_line(Console(width=40, file=file, force_terminal=terminal, no_color=True), text)
            longest[columns, terminal] = max(map(len, file.getvalue().splitlines()))
    assert longest["", False] == len(text)
    assert all(length <= 40 for (columns, terminal), length in longest.items() if columns or terminal)
