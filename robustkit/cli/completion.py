"""Complete words in a shell: the values of arguments and options, without loading torch, and the shell's script."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from cam.registry import CONTROLS

from ..common.plugins import built_in
from ..errors import ProtocolError, unknown

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
SHELLS = ("bash", "zsh", "fish")
COLONS = """
# zoo: and embedded: are parts of words here
COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}
"""


def completion_script(cli: click.Command, shell: str) -> str:
    """Return the script with which a shell completes `cli`. Raises ProtocolError where there is none for this shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ProtocolError(unknown("shell", shell, SHELLS))
    return kind(cli, {}, "robustkit", "_ROBUSTKIT_COMPLETE").source() + (COLONS if shell == "bash" else "")


_FIXED = {
    "--constants": ("auto", "imagenet", "cifar"),
    "--variant": ("hendrycks", "bethgelab"),
    "--dtype": ("float32", "bfloat16", "auto"),
    "--device": ("auto", "cpu", "cuda"),
    "--interpolation": ("bicubic", "bilinear", "nearest", "lanczos", "box", "hamming"),
    "--crop-mode": ("center", "center-floor", "squash", "border"),
    "--choose": ("disagreement", "worst", "best", "random", "class:"),
    "--log": ("tensorboard", "mlflow", "wandb"),
}
"""Options whose values are the same everywhere."""


def _names(option: str, context: click.Context) -> Iterable[str]:
    """Return the values of an option; of `checkpoint` and `code`, those of these arguments."""
    command = str(context.info_name)
    task = command if command in built_in("tasks") else {"segment": "segmentation"}.get(command, "classification")
    match option:
        case "code":
            from ..common.finding import catalogue

            return catalogue()
        case "checkpoint":
            from ..models.specs import embedded

            return [f"zoo:{name}" for name in embedded(task) or embedded()]
        case "--attacks":
            from ..common.plugins import declared
            from ..protocol.card import card_names, load_card

            names = load_card(task if task in card_names() else "standard").attacks
            return [*names, *(plugin.name for plugin in declared("attacks")), "none"]
        case "--corruptions":
            from ..evaluations.corruptions import SETS, corruption_names

            return [*SETS, *corruption_names()]
        case "--cams":
            from ..evaluations.maps import method_names

            return [*(name for name in method_names() if name not in CONTROLS), "auto"]
        case "--protocol":
            from ..protocol.card import card_names, load_card

            return [name for name in card_names() if load_card(name).task == task]
        case "--attention":
            from ..attention.registry import EVERY_FORMULA

            return EVERY_FORMULA
        case "--data-dir":
            pairs = () if command == "segment" else ("embedded:shapes-pairs", "embedded:shapes-counterfactual")
            return ("embedded:shapes", "embedded:shapes-train", *pairs)
        case "--layout" if command == "segment":
            return ("ade20k", "folders", "embedded")  # as `LAYOUTS` of `data.scenes`, which loads torch
        case "--layout":
            from ..data.layouts import LAYOUTS

            return [name for name in LAYOUTS if name != "embedded"]
        case "--engine":
            from ..evaluations.attacks import ENGINES

            return ENGINES
        case "--preset":
            from ..protocol.card import presets_of

            return presets_of(task)
        case "--reference":
            from ..results.published import reference_names

            return reference_names()
    return _FIXED[option]


def _completer(option: str, files: str = "", several: bool = False) -> Completer:
    """Return what completes one name. files: when the word is left to the shell as a path instead, `else` where no name
    fits, `first` also while the word is empty (a shell shows names or paths, not both). several: complete the last name
    of a list with commas; inside brackets there is nothing to offer."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if several and incomplete.count("(") > incomplete.count(")"):
            return []
        names = _names(option, context)
        if several:
            before, comma, _ = incomplete.rpartition(",")
            taken = before.split(",")
            names = [f"{before}{comma}{name}" for name in names if name not in taken]
        matches = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        if (files and not matches) or (files == "first" and not incomplete):
            return [CompletionItem(incomplete, type="file")]
        return matches

    return complete


codes, checkpoints = _completer("code"), _completer("checkpoint", "first")
COMPLETERS: dict[str, Completer] = {
    **{option: _completer(option, several=True) for option in ("--attacks", "--corruptions", "--cams")},
    **{option: _completer(option, "else") for option in ("--protocol", "--reference")},
    "--data-dir": _completer("--data-dir", "first"),
    **{option: _completer(option) for option in ("--attention", "--layout", "--engine", "--preset", *_FIXED)},
}
"""By the option's long name."""
