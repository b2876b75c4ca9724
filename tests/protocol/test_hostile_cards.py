"""Cards of odd types: one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from robustkit.errors import ProtocolError
from robustkit.protocol.card import load_card

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("summary = 1979-05-27", "holds a value that no card can have .Object of type date"),
        ("summary = [[07:32:00]]", "holds a value that no card can have .Object of type time"),
        ("source = inf", "holds a value that no card can have .Out of range float"),
        ("source = [[nan]]", "holds a value that no card can have .Out of range float"),
        (f"source = {'9' * 5000}", "not valid TOML: Exceeds the limit"),
        (f"source = {'[' * 5000}", "tables nested too deeply"),
        ("caveats = 5", "caveats is 5; expected a list of texts"),
        ("version = true", "version True; expected a whole number"),
        ("threat.eps = true", "eps 'True': expected a number such as 1/255"),
        ("threat.bounds = [true, false]", r"bounds \[True, False\]; expected two numbers"),
        ("attacks.pgd.bounds = 5", "bounds 5; expected two numbers"),
        ("preprocessing = {input_size = [8, 8], crop_pct = 'x'}", "crop_pct 'x'; expected a number"),
    ],
)
def test_cards_of_odd_types(tmp_path: Path, line: str, message: str) -> None:
    rest = {"name": "name = 'x'", "version": "version = 1", "threat": "threat.norm = 'linf'"}
    rest["attacks"] = "attacks.pgd.steps = 2"
    lines = [text for key, text in rest.items() if key != line.split(" ")[0]]
    path = tmp_path / "card.toml"
    path.write_text("\n".join([line, *lines]))
    with pytest.raises(ProtocolError, match=message) as caught:
        load_card(str(path))
    assert "\n" not in str(caught.value)
    path.write_text("\n".join(rest.values()))
    assert load_card(str(path)).name == "x"
