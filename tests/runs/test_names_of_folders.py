"""Names of folders in a run: each a single part of a path, also on Windows, and distinct."""

from pathlib import PureWindowsPath

import pytest

from robustkit.runs.folder import RunFolder, folder_name

PLAIN = ["vit", "vit_tiny_patch16_224.augreg", "pgd(eps=1_255,steps=20)", "console", "com", "a.con"]
ODD = [
    *("con", "CON", "Nul.pth", "aux.v2", "com1", "lpt9.tar.gz", "model.", "..", "C:\\windows", "a:b", "a/b", "a\\b"),
    *("../../x", "trailing ", "ä", "a" * 400, "pgd(eps=1/255,steps=20)", "\0", "<x>", "?*", "~", "-rf"),
    *("../../etc", "a b", "a-b.", "é", "x" * 300, "x" * 301, ".hidden"),
]


@pytest.mark.filterwarnings("ignore:pathlib.PureWindowsPath.is_reserved")
@pytest.mark.parametrize("text", [*PLAIN, *ODD])
def test_a_name_is_one_part_of_a_path_on_windows_too(text: str) -> None:
    path = PureWindowsPath("D:/runs") / RunFolder("run").shard_path(text, text, 3)
    assert path.parts[-4:-1] == ("records", folder_name(text), folder_name(text))
    name = PureWindowsPath(folder_name(text))
    assert len(name.parts) == 1 and not (name.drive or name.root or name.is_reserved())
    assert not str(name).endswith((".", " ")) and not set(str(name)) & set('<>:"/\\|?*') and str(name).isprintable()
    assert not str(name).startswith(".") and len(str(name)) < 140 and str(name).isascii()


def test_names_are_distinct_and_plain_ones_stay() -> None:
    assert [folder_name(text) for text in PLAIN] == PLAIN
    assert folder_name("pgd(eps=1/255,steps=20)") == "pgd(eps=1_255,steps=20)"
    assert len({folder_name(text).lower() for text in ODD}) == len(ODD)
