"""ESPNet (Mehta et al. 2018, arXiv:1803.06815) with the tensor names of its published weights: what a user's own
factory file looks like. `espnet` takes the normalised images that the toolkit gives; the published weights want blue
first and values over 255 once more."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPS = 1e-3


class Conv(nn.Module):
    """A convolution without bias, and with `after`, a norm and a PReLU."""

    def __init__(self, into: int, out: int, side: int, stride: int = 1, after: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, side, stride, side // 2, bias=False)
        if after:
            self.bn, self.act = nn.BatchNorm2d(out, EPS), nn.PReLU(out)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.act(self.bn(x)) if self.after else x


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn, self.act = nn.BatchNorm2d(width, EPS), nn.PReLU(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(x))


class Dilated(nn.Module):
    def __init__(self, into: int, out: int, rate: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, 3, padding=rate, dilation=rate, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Pyramid(nn.Module):
    """Five dilated convolutions of a narrow projection; from the second on their sums so far."""

    def __init__(self, into: int, out: int, down: bool = False) -> None:
        super().__init__()
        narrow = out // 5
        self.c1 = Conv(into, narrow, 3, 2) if down else Conv(into, narrow, 1)
        self.d1 = Dilated(narrow, out - 4 * narrow, 1)
        self.d2, self.d4, self.d8, self.d16 = (Dilated(narrow, narrow, rate) for rate in (2, 4, 8, 16))

    def branches(self, x: Tensor) -> Tensor:
        x = self.c1(x)
        parts = torch.stack([layer(x) for layer in (self.d2, self.d4, self.d8, self.d16)]).cumsum(dim=0)
        return torch.cat([self.d1(x), *parts], dim=1)


class Down(Pyramid):
    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out, down=True)
        self.bn, self.act = nn.BatchNorm2d(out, EPS), nn.PReLU(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.branches(x)))


class Block(Pyramid):
    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out)
        self.bn = Norm(out)

    def forward(self, x: Tensor) -> Tensor:
        made = self.branches(x)
        return self.bn(x + made if x.shape == made.shape else made)


class Encoder(nn.Module):
    def __init__(self, classes: int, second: int, third: int) -> None:
        super().__init__()
        self.level1, self.b1 = Conv(3, 16, 3, 2, after=True), Norm(19)
        self.level2_0, self.level2 = Down(19, 64), nn.Sequential(*(Block(64, 64) for _ in range(second)))
        self.b2 = Norm(131)
        self.level3_0, self.level3 = Down(131, 128), nn.Sequential(*(Block(128, 128) for _ in range(third)))
        self.b3, self.classifier = Norm(256), Conv(256, classes, 1)


class ESPNet(nn.Module):
    """Images (B, 3, H, W), sides multiples of 8, to (B, classes, H, W)."""

    def __init__(self, classes: int, second: int, third: int) -> None:
        super().__init__()
        self.encoder = Encoder(classes, second, third)
        self.level3_C, self.br = Conv(131, classes, 1), nn.BatchNorm2d(classes, EPS)
        self.conv = Conv(19 + classes, classes, 3, after=True)
        double = [nn.ConvTranspose2d(classes, classes, 2, 2, bias=False) for _ in range(3)]
        self.up_l3 = nn.Sequential(double[0])
        self.combine_l2_l3 = nn.Sequential(Norm(2 * classes), Block(2 * classes, classes))
        self.up_l2 = nn.Sequential(double[1], Norm(classes))
        self.classifier = double[2]
        self.pool = nn.AvgPool2d(3, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        own = self.encoder
        half = self.pool(images)
        first = own.b1(torch.cat([own.level1(images), half], dim=1))
        start = own.level2_0(first)
        second = own.b2(torch.cat([own.level2(start), start, self.pool(half)], dim=1))
        start = own.level3_0(second)
        third = own.classifier(own.b3(torch.cat([start, own.level3(start)], dim=1)))
        coarse = torch.cat([self.level3_C(second), self.up_l3(self.br(third))], dim=1)
        fine = self.up_l2(self.combine_l2_l3(coarse))
        return self.classifier(self.conv(torch.cat([fine, first], dim=1)))


class Published(ESPNet):
    """As the published weights want their input: blue first, and divided by 255 after the normalisation."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flip(1) / 255)


def espnet() -> nn.Module:
    """For CamVid: 11 classes and void."""
    return Published(12, 2, 8)
