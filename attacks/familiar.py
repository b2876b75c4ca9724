"""Names and lines that people know from other libraries: `PGD(eps=8/255)`, `Linf`, `run_standard_evaluation`."""

from __future__ import annotations

import difflib
import inspect
import math
import time
from abc import ABCMeta
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_NORMS = {"inf": "linf", "infinity": "linf", "2": "l2", "1": "l1", "0": "l0", "patch": "patch"}


def norm_named(norm: Any) -> Any:
    """Return a norm as it is called here: "linf" for `Linf`, `inf`, `L_inf` or `math.inf`, "l2" for `L2` or 2, and so
    on. Return anything else as it is.
    """
    text = f"{norm:g}" if isinstance(norm, int | float) else str(norm).lower().replace("∞", "inf")
    return _NORMS.get("".join(filter(str.isalnum, text)).removeprefix("l"), norm)


_MODELS = ("model", "estimator", "classifier", "predict")
_STEP, _COUNTS = ("step_size", "lr"), ("steps", "queries")
_THEIRS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("alpha", "abs_stepsize", "rel_stepsize", "stepsize", "eps_step", "eps_iter", "step"), _STEP),
    **dict.fromkeys(("learning_rate", "stepsize_adam"), ("lr", "step_size")),
    **dict.fromkeys(("epsilon", "epsilons", "eps_max", "radius"), ("eps",)),
    **dict.fromkeys(("iters", "nb_iter", "n_iter", "max_iter", "num_steps", "num_iter", "iterations"), _COUNTS),
    **dict.fromkeys(("n_queries", "max_queries", "num_queries", "nb_queries"), ("queries", "steps")),
    **dict.fromkeys(("n_restarts", "nb_restarts", "num_restarts", "num_random_init", "nb_random_init"), ("restarts",)),
    **dict.fromkeys(("random_init", "rand_init"), ("random_start",)),
    **dict.fromkeys(("eot_iter", "eot_iters"), ("eot",)),
    **dict.fromkeys(("nb_sample", "nb_samples", "num_samples", "samples"), ("directions",)),
    **dict.fromkeys(("n_targets", "n_target_classes", "n_classes"), ("targets",)),
    **dict.fromkeys(("loss_fn", "loss_type", "criterion"), ("loss",)),
    **dict.fromkeys(("ord", "p", "distance"), ("norm",)),
    **dict.fromkeys(("clip_min", "clip_max", "clip_values"), ("bounds",)),
    **dict.fromkeys(("resc_schedule",), ("rescale_schedule",)),
    **dict.fromkeys(("patch_size", "patch_shape"), ("size",)),
}
"""Parameters of torchattacks, foolbox, ART, CleverHans and AutoAttack's own code, and what they are called here."""
_LATER = {
    "seed": "random numbers come from torch's generator, or from rng= of the call",
    "batch_size": "give it to run(model, images, labels, batch_size=...)",
    "max_batch_size": "give it to run(model, images, labels, batch_size=...)",
    "verbose": "give tell= to run(model, images, labels, tell=...) to be told how far it is",
    "device": "it computes where the images are",
    "targeted": "attacks lead away from labels; towards the likeliest classes leads APGD with loss='dlr-targeted'",
}


def refuse(name: str, key: str, known: Iterable[str]) -> TypeError:
    """Return the error for a parameter that an attack does not have, with what it is called here."""
    known = list(known)
    if key in _LATER:
        return TypeError(f"{name} has no {key}: {_LATER[key]}")
    called = next((here for here in _THEIRS.get(key, ()) if here in known), None)
    if called is not None:
        unit = {"rel_stepsize": ", in the unit of the images: rel_stepsize * eps", "clip_min": ", such as (0, 1)"}.get(
            key, ""
        )
        return TypeError(f"{name} has no {key}; it is called {called} here{unit}")
    close = difflib.get_close_matches(key, known, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return TypeError(f"{name} has no {key}; {guess}it takes {', '.join(known)}")


class AttackType(ABCMeta):
    """How attacks are made: of a `ThreatModel`, or of its eps, norm and bounds, of a patch size and where, too.

    What is left out is as in the class's usual threat model; the radius of an attack that looks for the smallest change
    is then infinite. Raises TypeError for both together, for a model, which is given when the attack is called, and for
    a parameter of another library, with its name here.
    """

    def __call__(cls, *args: Any, **given: Any) -> Any:
        own = cls._own_parameters()
        if not own or own[0].name != "threat":  # a plug-in's own way
            return super().__call__(*args, **given)
        name, known = cls.__name__, [parameter.name for parameter in own]
        if args and not hasattr(args[0], "ball"):
            if isinstance(args[0], int | float | str):
                raise TypeError(f"{name}({args[0]!r}): expected a ThreatModel, or keywords such as eps=8/255")
            return cls._of_model(*args, **given)
        if model := next((key for key in _MODELS if key in given and key not in known), None):
            return cls._of_model(given.pop(model), **given)
        names = [key for key in cls._of_threat() if key not in known]
        short = {key: given.pop(key) for key in names if key in given}
        if short and (args or "threat" in given):
            raise TypeError(
                f"{name} has threat and {', '.join(short)}; expected one of the two: threat holds the other"
            )
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in own):
            for key in given:
                if key not in known:
                    raise refuse(name, key, [*names, *known])
        return super().__call__(*args, **given, **({"threat": cls._threat(short)} if short else {}))

    @property
    def __signature__(cls) -> inspect.Signature:
        own = cls._own_parameters()
        usual = cls._usual() if own and own[0].name == "threat" else None
        names = [key for key in cls._of_threat() if usual is not None and key not in [each.name for each in own]]
        more = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=getattr(usual, key)) for key in names]
        last = [each for each in own if each.kind is each.VAR_KEYWORD]
        return inspect.Signature([*(each for each in own if each not in last), *more, *last])

    def _own_parameters(cls) -> list[inspect.Parameter]:
        return list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]

    def _of_threat(cls) -> tuple[str, ...]:
        return ("eps", "norm", "bounds", *(("size", "where") if "patch" in getattr(cls, "norms", ()) else ()))

    def _usual(cls) -> Any:
        threat = next(each for each in fields(cls) if each.name == "threat")  # type: ignore[arg-type]
        if threat.default is MISSING and callable(threat.default_factory):
            return threat.default_factory()
        return threat.default

    def _threat(cls, short: dict[str, Any]) -> Any:
        usual, norms = cls._usual(), getattr(cls, "norms", ())
        given = {"norm": norms[0]} if norms and usual.norm not in norms else {}
        if getattr(cls, "minimal", False):
            given["eps"] = math.inf
        if short.get("bounds") is not None:
            short = {**short, "bounds": tuple(short["bounds"])}
        return replace(usual, **{**given, **short})

    def _of_model(cls, model: object, *args: Any, **given: Any) -> Any:
        name = cls.__name__
        raise TypeError(f"the model is given when the attack is called: {name}(eps=8/255)(model, images, labels)")


class StandardEvaluation:
    """What `AutoAttack(model, norm="Linf", eps=8/255)` makes: the interface of the code of Croce and Hein (2020), which
    runs the attack here.

    attack: the class `AutoAttack`. model, norm, eps, version: as there; "custom" runs `attacks_to_run` of what "plus"
        has. device: where images go; None: where the model is. seed: of each evaluation; None: torch's generator goes
        on. verbose: print accuracies as they are found. log_path: a file that gets the same lines.

    Raises TypeError for is_tf_model and state_path, ValueError for an unknown version or attack.
    """

    def __init__(
        self,
        attack: type[Any],
        model: Any,
        norm: str = "Linf",
        eps: float = 0.3,
        seed: int | None = None,
        verbose: bool = True,
        attacks_to_run: Sequence[str] = (),
        version: str = "standard",
        is_tf_model: bool = False,
        device: str | torch.device | None = None,
        log_path: str | Path | None = None,
    ) -> None:
        if is_tf_model:
            raise TypeError("is_tf_model: expected a model of PyTorch")
        if bool(attacks_to_run) != (version == "custom"):
            raise ValueError(f"attacks_to_run is {list(attacks_to_run)}, version {version!r}; expected both or neither")
        self.attack = attack(eps=eps, norm=norm, version="plus" if version == "custom" else version)
        self.model, self.norm, self.epsilon, self.version = model, norm, eps, version
        self.attacks_to_run = list(attacks_to_run or self.attack.stage_names)
        self.seed, self.verbose, self.log_path, self.device = seed, verbose, log_path, device

    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False, state_path: object = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the adversarial images (B, C, H, W), where the attack found none the images themselves; and with
        return_labels what the model predicts for them (B,). x_orig: (B, C, H, W) in [0, 1]. y_orig: (B,).
        """
        if state_path is not None:
            raise TypeError(
                "state_path: an evaluation here starts again; a run of robustkit audit goes on where it stopped"
            )
        self._say(f"using {self.version} version including {', '.join(self.attacks_to_run)}.")
        return self._evaluated(self.attacks_to_run, x_orig, y_orig, bs, return_labels)

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Return by attack what `run_standard_evaluation` does with this one alone, of all images."""
        return {name: self._evaluated([name], x_orig, y_orig, bs, return_labels) for name in self.attacks_to_run}

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """Return the share of the images that the model predicts right."""
        return float((self._predicted(x_orig, bs) == y_orig).float().mean())

    def _evaluated(
        self, names: list[str], images: Tensor, labels: Tensor, batch_size: int, return_labels: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        only = "" if names == list(self.attack.stage_names) else "+".join(names)
        attack, place, start = replace(self.attack, only=only), self._place(images), time.perf_counter()
        with torch.random.fork_rng(enabled=self.seed is not None):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            found = attack.run(self.model, images.to(place), labels.to(place), batch_size=batch_size)
        total = max(1, len(images))
        for number, stage in enumerate(found.stages):
            standing = total - int(((found.broken_by >= 0) & (found.broken_by <= number)).sum())
            spent = f" (total time {sum(found.seconds[: number + 1]):.1f} s)"
            when = f"robust accuracy after {stage.upper()}" if number else "initial accuracy"
            self._say(f"{when}: {standing / total:.2%}{spent if number else ''}")
        self._say(f"robust accuracy: {standing / total:.2%} ({time.perf_counter() - start:.1f} s)")
        adversarials: Tensor = found.adversarials.to(images.device)
        return (adversarials, self._predicted(adversarials, batch_size)) if return_labels else adversarials

    def _place(self, images: Tensor) -> torch.device:
        if self.device is not None:
            return torch.device(self.device)
        parts = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        return next(parts, images).device

    def _predicted(self, images: Tensor, batch_size: int) -> Tensor:
        place = self._place(images)
        with torch.no_grad():
            answers = [self.model(part.to(place)).argmax(dim=1) for part in torch.split(images, batch_size)]
        return torch.cat(answers).to(images.device)

    def _say(self, line: str) -> None:
        if self.verbose:
            print(line)
        if self.log_path is not None:
            with Path(self.log_path).open("a", encoding="utf-8") as log:
                log.write(line + "\n")
