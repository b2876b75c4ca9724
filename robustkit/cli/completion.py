"""Complete words in a shell: the values of arguments and options, without loading torch, and the shell's script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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
    """Return the script with which a shell completes the command line of `cli`.

    Raises:
        ProtocolError: there is none for this shell.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise ProtocolError(unknown("shell", shell, SHELLS))
    source = kind(cli, {}, "robustkit", "_ROBUSTKIT_COMPLETE").source()
    return source + (COLONS if shell == "bash" else "")


def _fitting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _one_of(names: Callable[[click.Context], Sequence[str]], files: str = "") -> Completer:
    """Complete one name. files: when the word is left to the shell as a path instead, `else` where no name fits,
    `first` also while the word is empty (a shell shows names or paths, not both).
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        matches = _fitting(names(context), incomplete)
        if (files and not matches) or (files == "first" and not incomplete):
            return [CompletionItem(incomplete, type="file")]
        return matches

    return complete


def _list_of(names: Callable[[click.Context], Sequence[str]]) -> Completer:
    """Complete the last name of a list with commas; inside brackets there is nothing to offer."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if incomplete.count("(") > incomplete.count(")"):
            return []
        before, comma, _ = incomplete.rpartition(",")
        taken = before.split(",")
        return _fitting([f"{before}{comma}{name}" for name in names(context) if name not in taken], incomplete)

    return complete


def _segments(context: click.Context) -> bool:
    return context.info_name == "segment"


def _task(context: click.Context) -> str:
    command = str(context.info_name)
    return command if command in built_in("tasks") else "segmentation" if _segments(context) else "classification"


def _references(context: click.Context) -> Sequence[str]:
    from ..results.published import reference_names

    return reference_names()


def _kinds(context: click.Context) -> Sequence[str]:
    from .listing import LISTINGS

    return tuple(LISTINGS)


def _zoo(context: click.Context) -> Sequence[str]:
    from ..models.specs import embedded

    return [f"zoo:{name}" for name in embedded(_task(context)) or embedded()]


def _of_plugins(group: str) -> list[str]:
    from ..common.plugins import declared

    return [plugin.name for plugin in declared(group)]


def _formulas(context: click.Context) -> Sequence[str]:
    from ..attention.registry import EVERY_FORMULA

    return [*EVERY_FORMULA]


def _attacks(context: click.Context) -> Sequence[str]:
    from ..protocol.card import card_names, load_card

    names = load_card(_task(context) if _task(context) in card_names() else "standard").attacks
    return [*names, *_of_plugins("attacks"), "none"]


def _corruptions(context: click.Context) -> Sequence[str]:
    from ..evaluations.corruptions.condition import SETS, corruption_names

    return [*SETS, *corruption_names()]


def _cams(context: click.Context) -> Sequence[str]:
    from ..evaluations.maps.methods import method_names

    return [name for name in method_names() if name not in CONTROLS]


def _protocols(context: click.Context) -> Sequence[str]:
    from ..protocol.card import card_names, load_card

    return [name for name in card_names() if load_card(name).task == _task(context)]


def _data(context: click.Context) -> Sequence[str]:
    names = ("embedded:shapes", "embedded:shapes-train")
    return names if _segments(context) else (*names, "embedded:shapes-pairs", "embedded:shapes-counterfactual")


def _layouts(context: click.Context) -> Sequence[str]:
    if _segments(context):
        return ("ade20k", "folders", "embedded")  # as in `label_maps`, which loads torch
    from ..data.layouts import LAYOUTS

    return [name for name in LAYOUTS if name != "embedded"]


def _engines(context: click.Context) -> Sequence[str]:
    from ..evaluations.attacks.condition import ENGINES

    return ENGINES


kinds = _one_of(_kinds)
checkpoints = _one_of(_zoo, "first")
COMPLETERS: dict[str, Completer] = {
    "--attacks": _list_of(_attacks),
    "--corruptions": _list_of(_corruptions),
    "--cams": _list_of(_cams),
    "--protocol": _one_of(_protocols, "else"),
    "--attention": _one_of(_formulas),
    "--data-dir": _one_of(_data, "first"),
    "--layout": _one_of(_layouts),
    "--engine": _one_of(_engines),
    "--preset": _one_of(lambda context: ("quick", "standard", "full")),
    "--constants": _one_of(lambda context: ("auto", "imagenet", "cifar")),
    "--variant": _one_of(lambda context: ("hendrycks", "bethgelab")),
    "--dtype": _one_of(lambda context: ("float32", "bfloat16")),
    "--device": _one_of(lambda context: ("auto", "cpu", "cuda")),
    "--interpolation": _one_of(lambda context: ("bicubic", "bilinear", "nearest", "lanczos", "box", "hamming")),
    "--crop-mode": _one_of(lambda context: ("center", "center-floor", "squash", "border")),
    "--choose": _one_of(lambda context: ("disagreement", "worst", "best", "random", "class:")),
    "--reference": _one_of(_references, "else"),
    "--log": _one_of(lambda context: ("tensorboard", "mlflow", "wandb")),
}
"""By the option's long name."""
