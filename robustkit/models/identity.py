"""What a model is, and the classifier that knows it: pixels in [0, 1] in, logits out.

Of a network of timm it is the classifier that timm itself takes off. Of any other it is the linear layer whose output
is the network's; where no linear layer is last, the network has no head, and its own output is taken.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..attention.apply import attention_kind, set_attention
from ..attention.formulas import find_formula
from ..common.determinism import seeded
from ..common.preprocessing import UNPROVEN, Preprocessing
from ..errors import ModelError, warn
from .claims import formula_in

if TYPE_CHECKING:
    from .checkpoint import Checkpoint


@dataclass(frozen=True)
class ModelIdentity:
    """What a model is, for every record and report.

    name: for display and file names. spec: what the user gave. path, sha256: the file, None where there was none
        (for timm: and the like, the digest of the tensors). arch: timm name or factory.
    attention: a formula's name, 'other' for attention that is none of them, 'none' for a model without.
    attention_source: where it comes from: 'option', 'metadata', 'weights' (tensors that only this formula has),
        'published' (weights that came with the network's code), 'name' (a name mentions it), 'default', or 'n/a' where
        there is no formula.
    weights: the part of the file that was taken ('bare', 'model_ema', ...), 'pretrained' or 'random'; with ', in part'
        where not all tensors fitted. code_sha256: digest of the file that holds the user's own factory.
    notes: lines for the user. preprocessing_source: who said each value, `common.preprocessing.SOURCES`. outputs: what
        the network returns: logits, probabilities, or other numbers between 0 and 1 (`models.outputs`). label_map: the
        entry of the label map that pools its outputs (`models.label_map`).
    """

    name: str
    spec: str
    path: Path | None
    sha256: str | None
    arch: str
    attention: str
    attention_source: str
    num_classes: int
    preprocessing: Preprocessing
    weights: str
    code_sha256: str | None = None
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    preprocessing_source: dict[str, str] = field(default_factory=dict)
    outputs: str = "logits"
    label_map: dict[str, Any] | None = None

    @property
    def trained_attention(self) -> str:
        """The formula that the file names, where `attention` has other options; otherwise empty."""
        attention = str(self.metadata.get("attention", ""))
        if attention.partition("(")[0].strip() != self.attention.partition("(")[0]:
            return ""
        try:
            trained: str = find_formula(attention).name
        except ModelError:  # of another version, or a typing error: shown as it stands
            trained = attention
        return trained if trained != self.attention else ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": None if self.path is None else str(self.path), "notes": list(self.notes)}


class Classifier(nn.Module):
    """Pixels in [0, 1], (B, 3, H, W), to logits (B, K). Evaluation mode, frozen parameters.

    Args:
        network: the model behind the normalisation.
        identity: what it is.

    Example:
        >>> model = robustkit.load("zoo:shapes-vit-quest")
        >>> model(torch.rand(2, 3, 64, 64)).shape, isinstance(model, robustkit.Classifier)
        (torch.Size([2, 10]), True)
    """

    of_channels: ClassVar[tuple[int, ...]] = (1, -1, 1, 1)
    passes_gradients: bool | None = None
    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, identity: ModelIdentity) -> None:
        super().__init__()
        self.network, self.identity = network, identity
        for name in ("mean", "std"):
            values = torch.tensor(getattr(identity.preprocessing, name), dtype=torch.float32)
            self.register_buffer(name, values.view(self.of_channels), persistent=False)
        self.eval().requires_grad_(False)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return (pixels - mean) / std, by the same operations in the same order as torchvision's Normalize."""
        return (pixels - self.mean) / self.std

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network(self.normalize(pixels))  # type: ignore[no-any-return]


def identity_of(
    file: Checkpoint, name: str, spec: str, arch: str, attention: tuple[str, str], partial: object = (), **more: Any
) -> ModelIdentity:
    """Return what a checkpoint's model is. attention: the formula, and who said it. partial: what did not fit."""
    return ModelIdentity(
        **{"metadata": file.metadata, **more},
        name=display_name(name),
        spec=spec,
        path=file.path,
        sha256=file.sha256,
        arch=arch,
        attention=attention[0],
        attention_source=attention[1],
        weights=file.weights + (", in part" if partial else ""),
    )


def give_attention(
    network: nn.Module,
    option: str | None,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    spec: str,
    *,
    names: Sequence[str] = (),
    plain: str = "default",
    origin: str = "metadata",
) -> tuple[str, str]:
    """Give the network its formula; return (formula or 'other' or 'none', where that comes from).

    names: of the model and its file, which may mention a formula. plain: the source where nothing says which one:
    `published` for weights that came with the network's code, else `default`. A network of the user's own that is made
    of timm's attention is no proof: weights of another formula go into it, too. origin: the source of the formula in
    metadata, `name` where an argument of training only mentions it.
    """
    forms = (_FORM.get((name.rsplit(".", 1)[1], t.ndim)) for name, t in tensors.items() if _SCALE.search(name))
    by_scale = next(filter(None, forms), None)
    by_metadata = metadata.get("attention")
    for name, source in ((option, "option"), (by_metadata, origin), (by_scale, "weights")):
        if name is None or (source == origin and name in ("none", "other")):
            continue
        try:
            set_attention(network, str(name))
        except ModelError as error:
            where = f" (from the {source} of {spec}); check --arch, or give --attention"
            raise ModelError(f"{error}{'; leave --attention out' if source == 'option' else where}") from error
        formula = find_formula(str(name))
        if not formula.norms and (norms := sum(bool(_NORM.search(tensor)) for tensor in tensors)):
            raise ModelError(
                f"{spec} was trained with query and key norms ({norms} tensors q_norm and k_norm), which "
                f"{formula.name} attention (from the {source}) would ignore; leave --attention out, or give "
                "qknorm-ln or qk-rms"
            )
        return formula.name, source
    kind = attention_kind(network)
    if kind not in ("none", "other") and find_formula(kind).norms:  # tensors that no other formula has
        return kind, "weights"
    mentioned = next(filter(None, map(formula_in, names)), None)
    if kind != "standard" or mentioned is None or plain != "default":
        return kind, "n/a" if kind in ("none", "other") else plain
    try:
        set_attention(network, mentioned)
    except ModelError:  # such as elliptical for Swin
        return kind, plain
    return mentioned, "name"


_NORM = re.compile(r"\.[qk]_norm\.weight$")
_SCALE = re.compile(r"\.(qk_scale|q_scale)$")
_FORM = {("qk_scale", 1): "qknorm-hs", ("q_scale", 1): "qknorm-ds", ("q_scale", 2): "qknorm"}


def evaluated_under(classifier: Classifier, formulas: Mapping[str, str]) -> str:
    """Give a classifier, in place, the formula that a card has in the place of its own; return a line that says so,
    empty where there is none. formulas: by the name of the own one. ModelError for an unknown one.
    """
    attention = classifier.identity.attention
    if attention not in formulas:
        return ""
    name = find_formula(formulas[attention]).name
    set_attention(classifier.network, name)
    source = classifier.identity.attention_source
    source = source if source in UNPROVEN else "card"  # a card decides options of a formula, not whether it is the one
    classifier.identity = replace(classifier.identity, attention=name, attention_source=source)
    return f"attention {name} from the card in the place of {attention}"


def attention_notes(kind: str, source: str, option: str | None, metadata: Mapping[str, Any]) -> tuple[str, ...]:
    attention = metadata.get("attention")
    if source == "option" and attention not in (None, option):
        return (f"attention {option} from --attention; the file's metadata says {attention}",)
    if source in UNPROVEN:
        why = (
            "only its name mentions its attention formula"
            if source == "name"
            else "the file does not record its attention formula"
        )
        return (
            f"WARNING: {why}; assuming {kind}. A checkpoint of another formula would load too and give wrong "
            "numbers: give --attention, or check with `robustkit inspect --data-dir`",
        )
    return ()


def warn_of_assumptions(identity: ModelIdentity) -> None:
    """Warn of an attention formula or a normalisation that nobody stated for this checkpoint."""
    sources, p = identity.preprocessing_source, identity.preprocessing
    assumed = [f"attention {identity.attention!r}"] if identity.attention_source in UNPROVEN else []
    assumed += [f"{name}={list(getattr(p, name))}" for name in ("mean", "std") if sources.get(name) in UNPROVEN]
    assumed += [f"image size {p.input_size}"] if sources.get("input_size") == "family" else []
    assumed += [f"text {identity.metadata.get('text', 'written')!r}"] if sources.get("text") in UNPROVEN else []
    if assumed:
        warn(
            f"{identity.name}: {', '.join(assumed)} assumed, since the file does not record it; other values load "
            "too and give wrong numbers. Pass them as arguments, or check them:"
            " robustkit inspect CHECKPOINT --data-dir DIR"
        )


def display_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "model"


def distinct_names(classifiers: Sequence[Classifier]) -> Sequence[Classifier]:
    """Give names to checkpoints that share one, in any case, in place: the parts in which the folders of their paths
    differ, such as `quest-s0` for `quest-s0/checkpoint.pth`, else the formulas, else a number. Where several names are
    shared, they follow: `quest-s0-last`."""
    by_name = dict[str, list[Classifier]]()
    for each in classifiers:
        by_name.setdefault(each.identity.name.lower(), []).append(each)
    clashes = [some for some in by_name.values() if len(some) > 1]
    for some in clashes:
        parts = differing_parts([each.identity.spec for each in some])
        formulas = [f"{each.identity.name}-{each.identity.attention}" for each in some]
        parts = parts or (formulas if len({*formulas}) == len(some) else [])
        for each, name in zip(some, parts, strict=False):
            label = f"{name}-{each.identity.name}" if len(clashes) > 1 and name not in formulas else name
            each.identity = replace(each.identity, name=display_name(label))
    taken: set[str] = set()
    originals = {classifier.identity.name.lower() for classifier in classifiers}
    for classifier in classifiers:
        identity = classifier.identity
        numbered = (f"{identity.name}-{count}" for count in range(2, 2 * len(classifiers) + 2))
        free = (name for name in numbered if name.lower() not in taken | originals)
        name = next(free) if identity.name.lower() in taken else identity.name
        taken.add(name.lower())
        classifier.identity = replace(identity, name=name)
    return classifiers


def differing_parts(paths: Sequence[str]) -> list[str]:
    """Return for each of several paths the names of the folders in which they differ, counted from the file, joined by
    `-`. An empty list where these do not tell all apart."""
    folders = [PurePath(path).parts[:-1][::-1] for path in paths]
    depth = max(map(len, folders))
    padded = [(*each, *[""] * (depth - len(each))) for each in folders]
    places = [place for place in range(depth) if len({each[place] for each in padded}) > 1]
    names = ["-".join(filter(None, (each[place] for place in reversed(places)))) for each in padded]
    return names if len({name.lower() for name in names} - {""}) == len(paths) else []


def without_head(network: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the classifier off a network of timm, in place; return a file's tensors without those of it."""
    names = set(network.state_dict())
    network.reset_classifier(0)  # type: ignore[operator]
    gone = names - set(network.state_dict())
    return {name: tensor for name, tensor in tensors.items() if name not in gone}


def as_features(classifier: Classifier) -> Classifier:
    """Return a classifier without its head, whose identity says what is taken. ModelError where it gives no (1, D)."""
    network, identity = classifier.network, classifier.identity
    grey = torch.full((1, identity.preprocessing.channels, *identity.preprocessing.input_size), 0.5)
    if hasattr(network, "reset_classifier"):
        network.reset_classifier(0)  # type: ignore[operator]
        taken = "its output before the classifier"
    elif name := _last_linear(classifier, grey):
        network.set_submodule(name, nn.Identity())
        taken = f"what {name} takes"
    else:
        taken = "the network's own output, since no linear layer is last"
    with torch.no_grad():
        features = classifier(grey)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 1 or features.shape[1] < 2:
        answer = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        why = f"no features: {answer} for one image; expected (1, D), D at least 2, from a network without its head"
        raise ModelError(f"{identity.name}: {why}; give --arch FILE.py:FUNCTION with one that returns them")
    note = f"features: {taken}, {features.shape[1]} numbers"
    classifier.identity = replace(identity, num_classes=0, class_names=None, notes=(*identity.notes, note))
    return classifier


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def has_gradients(classifier: Classifier) -> bool:
    """Whether all layers pass on gradients, tried once by a backward through a grey image. Graphs of another runtime
    have none. Kernels of whole numbers drop them in silence or with a warning, while other branches still have some.
    """
    if classifier.passes_gradients is None:
        p = classifier.identity.preprocessing
        grey = torch.full((1, p.channels, *p.input_size), 0.5, device=classifier.mean.device)
        dropped = list[nn.Module]()

        def look(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            seen = [isinstance(each, Tensor) and each.requires_grad for each in (*inputs[:1], output)]
            dropped.extend([layer] if seen == [True, False] else [])

        layers = [part for part in nn.Module.modules(classifier) if isinstance(part, _LAYERS)]
        hooks = [layer.register_forward_hook(look) for layer in layers]
        with warnings.catch_warnings(record=True) as messages, torch.enable_grad(), seeded(grey.device, 0):
            warnings.simplefilter("always")
            try:
                logits = classifier(grey.requires_grad_())
                connected = torch.autograd.grad(logits.sum(), grey, allow_unused=True)[0] is not None
            except (RuntimeError, NotImplementedError):  # no gradient at all, or an operator without one
                connected = False
            finally:
                for hook in hooks:
                    hook.remove()
        warned = any("autograd kernel was not registered" in str(each.message) for each in messages)
        classifier.passes_gradients = connected and not dropped and not warned
    return classifier.passes_gradients


def embed(network: Any, images: Tensor) -> Tensor:
    """Return what a network's head takes, (B, D), of normalised images: of a zero-shot model the image's embedding.
    Raises ModelError for a network that is neither such a model nor timm's."""
    if hasattr(network, "embed"):
        return network.embed(images)  # type: ignore[no-any-return]
    if hasattr(network, "forward_features") and hasattr(network, "forward_head"):
        return network.forward_head(network.forward_features(images), pre_logits=True)  # type: ignore[no-any-return]
    what = "it is neither a zero-shot model nor a network of timm"
    raise ModelError(f"{type(network).__name__} does not say what its head takes: {what}; leave out loss=embedding")


def _last_linear(classifier: Classifier, grey: Tensor) -> str:
    """Return the linear layer whose output is the network's; empty where there is none."""
    made: dict[str, Tensor] = {}
    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: made.update({name: output}))
        for name, part in classifier.network.named_modules()
        if isinstance(part, nn.Linear) and name
    ]
    try:
        with torch.no_grad():
            logits = classifier(grey)
    finally:
        for hook in hooks:
            hook.remove()
    return next((name for name, output in made.items() if output is logits), "")
