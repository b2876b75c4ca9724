"""Networks of the user's own that keep lists under the names of nn.Module's methods, as ESPNet does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_audit
import timm
import torch
from torch import nn

import robustkit
from attacks import PGD
from cam import AGCAM
from robustkit.attention import get_attention, set_attention
from robustkit.errors import ModelError

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")
HARMLESS = ("modules", "parameters", "buffers")
LISTS = "\n".join(f"    net.__dict__[{name!r}] = [net[0]]" for name in HARMLESS)


def hide(network: nn.Module) -> nn.Module:
    for part in list(network.modules()):
        part.__dict__.update({name: [part] for name in HARMLESS})
    return network


def test_an_audit_is_the_same_with_and_without_such_lists(tmp_path: Path) -> None:
    place = small_audit.furnish(tmp_path)
    options = {"attacks": "pgd(steps=3)", "cams": "grad-cam", "faithfulness": "all", "limit": 4, "dtype": "bfloat16"}
    plain = small_audit.audit(place, tmp_path / "plain", **options)
    (place / "net.py").write_text(small_audit.FACTORY.replace("    return net", f"{LISTS}\n    return net"))
    lists = small_audit.audit(place, tmp_path / "lists", **options)
    assert lists.summary() == plain.summary()
    assert len(lists.summary()) > 10


def test_attention_of_such_a_network_is_found_changed_ranked_and_explained() -> None:
    pytest.importorskip("robustkit.slices.inspect")
    from ranked import ranked

    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, num_heads=2, depth=2, num_classes=4)
    plain.eval()
    state, images = plain.state_dict(), torch.rand(2, 3, 32, 32)
    vit: Any = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, num_heads=2, depth=2, num_classes=4)
    vit.load_state_dict(state)
    hide(vit).eval()
    assert get_attention(set_attention(vit, "quest")) == "quest"
    set_attention(plain, "quest")
    labels = torch.tensor([0, 1])
    found = [ranked(model, images, labels) for model in (vit, plain)]
    assert found[0] == found[1]
    for model in (vit, plain):
        model.train()
    assert torch.equal(*(PGD(steps=2, random_start=False)(model, images, labels) for model in (vit, plain)))
    assert torch.equal(*(AGCAM(model)(images) for model in (vit, plain)))
    assert all(part.training for part in nn.Module.modules(vit))


@pytest.mark.parametrize("name", ["children", "named_modules", "named_parameters", "train", "state_dict", "forward"])
def test_a_list_that_torch_itself_trips_over_is_named(tmp_path: Path, name: str) -> None:
    place = small_audit.furnish(tmp_path)
    changed = small_audit.FACTORY.replace("    return net", f"    net[1].__dict__[{name!r}] = [1]\n    return net")
    (place / "net.py").write_text(changed)
    with pytest.raises(ModelError, match=rf"net.py:build'?: GELU keeps a list as its attribute '{name}'.*another name"):
        robustkit.load(place / "net.pth", arch=f"{place / 'net.py'}:build")
