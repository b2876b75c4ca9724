"""Write README.md: which flags are raised by models that cheat, and that honest ones raise none.

    python -m scripts.studies.cheating_models.page [--shared ../shared] [--markdown PAGE]

The cheats are those of tests/support/cheating_models.py around a small network; the honest models are the shipped ones
and, where --shared names a folder of real data and weights, robust ResNets and ViTs for CIFAR-10 and a real ViT-Tiny.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import robustkit
from attacks import PGD, AutoAttack, ThreatModel
from attacks.model_access import Model
from robustkit.common.determinism import SampleRng
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels
from robustkit.slices.evidence.examining import examine
from robustkit.slices.evidence.gradient_masking import checks_of
from scripts.pages.writing import write_page

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from attack_oracles import random_images, tiny_cnn  # noqa: E402
from cheating_models import CHEATS, UNFLAGGED, Known  # noqa: E402
from cheating_nets import CHECKS, COUNT, FOOLED, audited_by_pgd  # noqa: E402

EPS = 8 / 255
BESIDE = ((1 / 255, "linf"), (8 / 255, "linf"), (0.5, "l2"))
CIFAR = {
    "resnet20-12fca82f.th": "cifar_resnets.py:resnet20",
    "resnet2b.pth": "cifar_resnets.py:resnet2b",
    "resnet4b.pth": "cifar_resnets.py:resnet4b",
    "vit_pgd_2_3_16_torchport.safetensors": "cifar_vit.py:vit_2_16",
    "vit_ibp_3_3_8_torchport.safetensors": "cifar_vit.py:vit_3_8",
}
VIT_TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
BEGIN = """# Models that cheat

A robust accuracy is only as good as the attack that could not lower it. Below are models that defeat an attack by every
trick we know: all are the same small network with random weights, with something around it, on {n} images that they
know. The table says how many of these AutoAttack, made short (`steps=5,targets=2,queries=20`), leaves standing at
{eps}, and which flags of the [dossier](../../../docs/concepts/gradient-masking.md) are
raised; and what an audit says that was asked for `--attacks pgd --evidence full`, whose evidence is shorter.
Written by `{command}`.

Of the network without a trick AutoAttack leaves {honest} and PGD {mild}; flags: {flags}.

| model | what it does | clean | AutoAttack | flags | PGD alone | flags |
|---|---|---|---|---|---|---|
"""
HONEST = """
Of the models above that leave {more} samples more than the honest network under PGD, without a flag: {silent}.
{unseen}. This is what these tricks show, not a proof about others. What a model does while it is
looked at says nothing about one that knows when it is looked at: read the code of a model that you did not write. One
that counts, or waits, until it was looked at is looked at again after the attack (`afterwards`), and a result is
compared with what the evidence's own attack broke (`attacks in order`); a model that behaves at both times and cheats
only in between, and only a little, would not be seen.

## Models that do not

The same checks on models as they are: those of evidence on AutoAttack, and those on PGD, which are fewer.

| model | eps | samples | right | flags |
|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, help="a folder with real data and weights")
    parser.add_argument("--markdown", type=Path, default=Path(__file__).with_name("README.md"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    net, images = tiny_cnn(), (random_images(32) * 255).round() / 255
    with torch.no_grad():
        k = Known(net, images, net(images).argmax(dim=1), EPS)
    _, standing, flags = tried(net, k)
    with TemporaryDirectory() as root:
        audited = audited_by_pgd(Path(root))
    alone = {
        name: f"{100 * right / COUNT:.0f} % | {', '.join(sorted(found, key=CHECKS.index)) or 'none'}"
        for name, (right, found) in audited.items()
    }
    least = audited["honest"][0] + FOOLED
    silent = [name for name, (right, found) in audited.items() if right >= least and not found]
    shared = " --shared ../shared" if given.shared else ""
    text = BEGIN.format(
        n=len(images),
        eps="8/255",
        command=f"python -m scripts.studies.cheating_models.page{shared}",
        honest=standing,
        mild=alone["honest"].partition(" |")[0],
        flags=flags,
    )
    for name, make in CHEATS.items():
        clean, standing, flags = tried(make(k), k)
        says = " ".join((make.__doc__ or "").split())
        text += f"| {name} | {says} | {clean} % | {standing} | {flags} | {alone.get(name, 'refused | –')} |\n"
        print(name, clean, standing, flags, flush=True)
    unseen = "; ".join(f"The evidence does not see {name}, for {why}" for name, why in UNFLAGGED.items())
    text += HONEST.format(unseen=unseen, more=FOOLED, silent=", ".join(silent) or "none")
    for name, model, pixels, labels in honest(given.shared):
        for eps, norm in BESIDE:
            threat = ThreatModel(norm, eps)  # type: ignore[arg-type]
            figures, brief = (looked_at(model, pixels, labels, threat, brief) for brief in (False, True))
            noted = ", ".join(dict.fromkeys(flags for each in (figures, brief) if (flags := flags_of(each)) != "none"))
            size = f"{eps * 255:g}/255" if norm == "linf" else f"{eps:g} ({norm})"
            text += f"| {name} | {size} | {len(labels)} | {figures['right']} | {noted or 'none'} |\n"
            print(name, size, noted, flush=True)
    write_page(given.markdown, text)


def tried(model: Model, k: Known) -> tuple[int, str, str]:
    """Return, in per cent, clean accuracy and what shortened AutoAttack leaves standing; and the flags."""
    torch.manual_seed(0)
    with torch.no_grad():
        clean = round(100 * float((model(k.images).argmax(dim=1) == k.labels).float().mean()))
    attack = AutoAttack(ThreatModel("linf", EPS), steps=5, targets=2, queries=20)
    try:
        result = attack.run(model, k.images, k.labels, rng=rng_of(len(k.images)), batch_size=32)
        standing = f"{100 * float((result.broken_by < 0).float().mean()):.0f} %"  # type: ignore[attr-defined]
    except ValueError:
        standing = "refused"
    torch.manual_seed(0)
    return clean, standing, flags_of(looked_at(model, k.images, k.labels, attack.threat))


def looked_at(model: Model, images: Tensor, labels: Tensor, threat: ThreatModel, brief: bool = False) -> dict[str, Any]:
    rng, attack = rng_of(len(images)), PGD(threat) if brief else AutoAttack(threat)
    options: dict[str, Any] = {"batch_size": 16, "attack": attack, "brief": brief, "attack_batch": 32}
    return examine(model, images, labels, threat, rng=rng, **options)


def rng_of(count: int) -> SampleRng:
    return SampleRng.of([str(place) for place in range(count)], seed=0, condition="cheats", device="cpu")


def flags_of(figures: dict[str, Any]) -> str:
    return ", ".join(check.name for check in checks_of(figures) if check.finding) or "none"


def honest(shared: Path | None) -> Iterator[tuple[str, Model, Tensor, Tensor]]:
    """Yield name, model, images and labels."""
    specs: list[tuple[str, str, dict[str, Any], str, int]] = [
        (f"zoo:shapes-vit-{kind}", f"zoo:shapes-vit-{kind}", {}, "embedded:shapes", 16)
        for kind in ("standard", "quest", "elliptical", "elliptical-quest")
    ]
    if shared:
        cifar = str(shared / "data" / "cifar10-test.zip")
        weights = shared / "weights" / "cifar10"
        for name, arch in CIFAR.items():
            specs.append((name, str(weights / name), {"arch": f"{ROOT / 'tests/support' / arch}"}, cifar, 32))
        specs.append(("zoo:cifar10-vit-standard", "zoo:cifar10-vit-standard", {}, cifar, 16))
        val = str(shared / "data" / "imagenet-val" / "val")
        specs.append((VIT_TINY, str(shared / "weights" / VIT_TINY), {}, val, 8))
    for name, spec, options, root, count in specs:
        model = robustkit.load(spec, **options)
        dataset = open_dataset(root, num_classes=model.identity.num_classes).select(limit=count, ids=None, seed=0)
        pixels = [to_pixels(dataset.image(sample), model.identity.preprocessing) for sample in dataset.samples]
        yield name, model, torch.stack(pixels).float() / 255, torch.tensor([entry.label for entry in dataset.samples])


if __name__ == "__main__":
    main()
