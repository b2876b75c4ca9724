"""Architectures of one's own, as `--arch tests/support/cifar_resnets.py:resnet2b` takes them.

Two small ResNets for CIFAR-10 without batch normalisation, whose tensors are named as in the adversarially trained
checkpoints resnet2b.pth and resnet4b.pth of the VNN competition; and the ResNet-20 of He et al. (2016), section 4.2.
`default_cfg` carries what timm's models carry there.
"""

from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1)
        self.shortcut = nn.Sequential(*([nn.Conv2d(inside, outside, 1, stride)] if stride > 1 else []))

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv2(self.conv1(x).relu()) + self.shortcut(x)).relu()


class ResNet(nn.Module):
    def __init__(self, width: int, stages: int, features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 2, 1)
        self.stages = stages
        for stage in range(1, stages + 1):
            inside = width if stage == 1 else 2 * width
            self.add_module(f"layer{stage}", nn.Sequential(Block(inside, 2 * width, 2), Block(2 * width, 2 * width, 1)))
        self.linear1 = nn.Linear(features, 100)
        self.linear2 = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu()
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.linear2(self.linear1(x.flatten(1)).relu())


def _with_config(network: ResNet) -> nn.Module:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    network.default_cfg = {"mean": mean, "std": std, "input_size": (3, 32, 32), "crop_pct": 1.0}  # type: ignore[assignment]
    return network


class PlainBlock(nn.Module):
    """A block with batch normalisation whose shortcut drops pixels and pads channels."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, outside // inside, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.pad = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside), (outside - inside) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.pad:
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return (x + y).relu()


class ResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = {1: (16, 16), 2: (16, 32), 3: (32, 64)}
        for stage, (inside, outside) in widths.items():
            blocks = (PlainBlock(inside, outside), PlainBlock(outside, outside), PlainBlock(outside, outside))
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.linear(x.mean(dim=(2, 3)))


def resnet20(**_: object) -> nn.Module:
    network = ResNet20()
    config = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "input_size": (3, 32, 32), "crop_pct": 1.0}
    network.default_cfg = config  # type: ignore[assignment]
    return network


def resnet2b(**_: object) -> nn.Module:
    return _with_config(ResNet(8, 1, 1024))


def resnet4b(**_: object) -> nn.Module:
    return _with_config(ResNet(16, 2, 512))
