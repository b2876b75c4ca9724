"""The ten corruptions of ImageNet-C-bar (Mintun, Kirillov and Xie 2021, arXiv:2102.11273), unlike the benchmark's.

They are defined on squares: an image that is none is the middle of the square of its longer side, S. Positions are in
its pixels, rows first. Draws are made in [0, 1) and computed with in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from .base import Corruption, Draws, Rng

PI, GREY = math.pi, 128
RAYS = 200  # more than any sparkle has
_CELLS = 40  # of a checkerboard's side, at most
_TURNS, _TAU = 5, 6.28318530718  # of the caustic's light, and of its tile


def between(uniform: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform


def pixels_of(images: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return S, and the rows (1, H, 1) and columns (1, 1, W) of images (B, 3, H, W) in their square."""
    height, width = images.shape[-2:]
    side = max(height, width)
    rows, columns = (
        torch.arange(size, dtype=torch.float64, device=images.device) + (side - size) // 2 for size in (height, width)
    )
    return side, rows.view(1, -1, 1), columns.view(1, 1, -1)


def whole(values: Tensor) -> Tensor:
    """Return pixels (B, 3, H, W) of 0 to 255 in 8 bits, clipped and truncated."""
    return values.clamp(0, 255).to(torch.uint8)


class OfBar(Corruption):
    category = "c-bar"
    highest: ClassVar[float]
    """What the constant 10 stands for."""
    uniforms: ClassVar[Mapping[str, tuple[int, ...]]]
    """The shape of each draw, a number in [0, 1) each."""

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {name: rng.uniform(size, name) for name, size in self.uniforms.items()})

    def level(self, severity: int) -> float:
        return float(self.constants(severity)) * self.highest / 10

    def of(self, draws: Draws, name: str, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return a draw (B, …, 1, 1) in float64, from `low` to `high`."""
        return between(draws[name].double(), low, high)[..., None, None]


class SingleFrequencyGreyscale(OfBar):
    """A wave of one frequency over all channels. Draws: `first`, `second`, `order`, `phase`."""

    name, highest = "single_frequency_greyscale", 196.0
    uniforms = dict.fromkeys(("first", "second", "order", "phase"), ())

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        _, y, x = pixels_of(images)
        first = self.of(draws, "first", -PI, PI)
        second = self.of(draws, "second", -1, 1) * first.abs()
        swapped = draws["order"][..., None, None] >= 0.5
        along, down = torch.where(swapped, second, first), torch.where(swapped, first, second)
        wave = torch.sin(x * along + y * down + self.of(draws, "phase", 0, 2 * PI))
        return whole(images + self.level(draws.severity) * wave[:, None])


class CocentricSineWaves(OfBar):
    """Rings with a wavy outline. Draws: `offset` (2: column, row), `frequency`, `amplitude`, `width`."""

    name, highest = "cocentric_sine_waves", 128.0
    uniforms: ClassVar = {"offset": (2,), "frequency": (), "amplitude": (), "width": ()}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        offset = self.of(draws, "offset", 0, side)
        x, y = x - offset[:, 0], y - offset[:, 1]
        wave = torch.sin(torch.atan2(x, y) * self.of(draws, "frequency", 0, 10))
        distance = (x**2 + y**2).sqrt() + wave * self.of(draws, "amplitude", 0, side / 10)
        width = self.of(draws, "width", 0, side / 10).clamp_min(1e-6)
        rings = torch.remainder(distance, width) / width - 0.5
        return whole(images + self.level(draws.severity) * rings[:, None])


class PlasmaNoise(OfBar):
    """Coloured plasma: coordinates bent by sines of each other. Draws: `time`, `turns`, `sharpness`, `scale`."""

    name, highest = "plasma_noise", 64.0
    uniforms = dict.fromkeys(("time", "turns", "sharpness", "scale"), ())

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        time, scale = self.of(draws, "time", 0, 6 * PI), self.of(draws, "scale", 0.075, 0.2) * side
        turns, sharpness = self.of(draws, "turns", 4, 7).floor(), self.of(draws, "sharpness", 0.5, 1)
        x, y = x / scale + 0 * y, y / scale + 0 * x
        often, slow, deep = 1.0, 1.0, torch.ones_like(sharpness)
        for turn in range(6):
            across = torch.cos(y * often + time / slow) / deep
            down = torch.sin(x * often + time / slow) / deep
            going = turn < turns
            x, y = (
                torch.where(going, x + across - 0.3 * down, x),
                torch.where(going, y + down + 0.3 * across, y),
            )
            often, slow, deep = often * 1.93, slow * 1.15, deep * (2.25 - sharpness)
        noise = (torch.sin(x - time), torch.sin((x + y + torch.sin(time)) * 0.5), torch.sin(y + time))
        strength = self.level(draws.severity)
        return whole((1 - strength / 255) * images + strength * torch.stack(noise, dim=1))


def _rays(y: Tensor, x: Tensor, centre: Tensor, lengths: Tensor, count: Tensor, power: float) -> Tensor:
    """Return how bright a sparkle is at each pixel, (B, H, W) in [0, 1].

    centre: (B, 2, 1, 1), row and column. lengths: (B, RAYS) of its rays, the first `count` (B,) of which it has.
    """
    y, x = y - centre[:, 0], x - centre[:, 1]
    squared = (y**2 + x**2).sqrt() ** 2
    place = (torch.atan2(x, y) + PI) / (2 * PI) * count[:, None, None]
    ray = place.long()
    share = place - ray
    of_ray, of_next = (
        lengths.gather(1, torch.remainder(ray + more, count[:, None, None]).flatten(1)).view_as(ray) for more in (0, 1)
    )
    bright = ((of_ray + share * (of_next - of_ray)) ** 2 / (squared + 1e-4)) ** power
    return ((1 - (share - 0.5) ** 2) * bright).clamp(0, 1)


class Sparkles(OfBar):
    """Five white sparkles. Draws: `centres` (5, 2), `rays` (5), `lengths` (5, RAYS) standard normal."""

    name, highest = "sparkles", 0.1

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        numbers = {"centres": rng.uniform((5, 2), "centres"), "rays": rng.uniform((5,), "rays")}
        return Draws(severity, numbers | {"lengths": rng.normal((5, RAYS), "lengths")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        radius = self.level(draws.severity) * side
        lengths = (radius + 0.25 * radius * draws["lengths"].double()).clamp_min(1)
        centres, counts = self.of(draws, "centres", 0, side), between(draws["rays"].double(), 50, 200).long()
        values = images.double()
        for number in range(5):
            bright = _rays(y, x, centres[:, number], lengths[:, number], counts[:, number], 1.0)[:, None]
            values = (values + bright * (255 - values)).float().double()  # the reference keeps 32 bits in between
        return whole(values)


class InverseSparkles(OfBar):
    """The image seen through a sparkle in white. Draws: `centre` (2), `rays`, `lengths` (RAYS) standard normal."""

    name, highest = "inverse_sparkles", 65.0

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        numbers = {"centre": rng.uniform((2,), "centre"), "rays": rng.uniform((), "rays")}
        return Draws(severity, numbers | {"lengths": rng.normal((RAYS,), "lengths")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        lengths = 0.25 * side * (1 + 0.25 * draws["lengths"].double())
        centre, count = self.of(draws, "centre", 0.25, 0.75) * side, between(draws["rays"].double(), 50, 200).long()
        power = self.level(draws.severity) / 50
        bright = _rays(y, x, centre, lengths, count, power)[:, None]
        return whole(255 + bright * (images.double() - 255))


class PerlinNoise(OfBar):
    """Five octaves of Perlin's noise. Draws: `swaps` (256), which shuffle the places; `slopes` (256, 2)."""

    name, highest = "perlin_noise", 0.5
    uniforms: ClassVar = {"swaps": (256,), "slopes": (256, 2)}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        swaps = (draws["swaps"].double() * 256).long()
        places = torch.arange(256, device=images.device).repeat(len(images), 1)
        for last in range(255, -1, -1):
            other = swaps[:, last, None]
            held = places[:, last, None].clone()
            places[:, last, None] = places.gather(1, other)
            places.scatter_(1, other, held)
        slopes = ((draws["slopes"].double() * 512).floor() - 256) / 256
        slopes = slopes / slopes.norm(dim=2, keepdim=True).clamp_min(1e-12)  # a null one stays, theirs is no number
        fine, noise = 32 * side / 224, torch.zeros((), dtype=torch.float64, device=images.device)
        for octave in (1, 2, 4, 8, 16):
            noise = noise + self._octave(octave * (y / fine), octave * (x / fine), places, slopes).abs() / octave
        share = self.level(draws.severity)
        clean = (images.float() * (1 - share)).double()  # in 32 bits, as the reference
        return whole(clean + 255 * share * (0.5 * noise + 0.5).clamp(0, 1)[:, None])

    def _octave(self, y: Tensor, x: Tensor, places: Tensor, slopes: Tensor) -> Tensor:
        (row, down), (column, along) = ((each.floor().long() % 256, each - each.floor()) for each in (y, x))

        def slope(below: int, right: int) -> Tensor:
            first = places[:, ((row + below) % 256).flatten()].view(-1, row.shape[1], 1)
            cell = (first + (column + right) % 256) % 256
            corner = places.gather(1, cell.flatten(1))
            steep, level = (slopes[..., axis].gather(1, corner).view_as(cell) for axis in (0, 1))
            return steep * (down - below) + level * (along - right)

        bent, across = down**2 * (3 - 2 * down), along**2 * (3 - 2 * along)
        left, right = (slope(0, side) + bent * (slope(1, side) - slope(0, side)) for side in (0, 1))
        return 1.5 * (left + across * (right - left))


def _spectrum(phases: Tensor, middle: Tensor, side: int, power: Tensor) -> Tensor:
    """Return noise (B, C, S, S) of standard deviation 1 from phases (B, C, S, S // 2), and of the middle (B, C, S // 2)
    where S is odd. power: (S, S) of each frequency, the lowest in the middle."""
    half = phases[..., : side // 2]
    parts = [half, half.flip(2, 3)]
    if side % 2:
        column = middle[..., None]
        parts.insert(1, torch.cat([column, torch.zeros_like(column[..., :1, :]), column.flip(2)], dim=2))
    field = power * torch.exp(1j * torch.cat(parts, dim=3))
    noise: Tensor = torch.fft.ifft2(field.roll((side // 2, side // 2), (2, 3))).real
    return noise / noise.std(dim=(2, 3), correction=0, keepdim=True)


class _Spectral(OfBar):
    """Draws: `phases` (C, S, S // 2), `middle` (C, S // 2); C is 1, or the image's channels."""

    of_each_channel = False

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        side = max(shape[-2:])
        channels = shape[0] if self.of_each_channel else 1
        sizes = {"phases": (channels, side, side // 2), "middle": (channels, side // 2)}
        return Draws(severity, {name: rng.uniform(size, name) for name, size in sizes.items()})

    def noise(self, images: Tensor, draws: Draws) -> Tensor:
        """Return noise (B, C, H, W)."""
        side, _, _ = pixels_of(images)
        height, width = images.shape[-2:]
        ends = torch.arange(side, dtype=torch.float64, device=images.device) - side / 2
        power = self.power((ends[:, None] ** 2 + ends**2).sqrt())
        whole_noise = _spectrum(draws["phases"].double() * 2 * PI, draws["middle"].double() * 2 * PI, side, power)
        top, left = (side - height) // 2, (side - width) // 2
        return whole_noise[..., top : top + height, left : left + width]

    def power(self, distance: Tensor) -> Tensor:
        raise NotImplementedError


class BlueNoiseSample(_Spectral):
    """Black where blue noise is low."""

    name, highest = "blue_noise_sample", 3.0

    def power(self, distance: Tensor) -> Tensor:
        return distance

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        return images * (self.noise(images, draws) > self.level(draws.severity) - 2.5)


class BrownishNoise(_Spectral):
    """Noise of low frequencies, each channel its own."""

    name, highest, of_each_channel = "brownish_noise", 64.0, True

    def power(self, distance: Tensor) -> Tensor:
        return 1 / (distance**2 + 1)

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        return whole(images + self.level(draws.severity) * self.noise(images, draws))


class CheckerboardCutout(OfBar):
    """Grey squares on a tilted checkerboard, on some of its fields. Draws: `angle`, `scale`, `fields` (40, 40)."""

    name, highest = "checkerboard_cutout", 1.0
    uniforms: ClassVar = {"angle": (), "scale": (), "fields": (_CELLS, _CELLS)}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        angle = self.of(draws, "angle", 0, 2 * PI)
        scale = (self.of(draws, "scale", 0.1, 0.25) * side).clamp_min(1)
        cells = (4 * side // scale).long()
        row = (torch.cos(angle) * y + torch.sin(angle) * x) / scale
        column = (-torch.sin(angle) * y + torch.cos(angle) * x) / scale
        is_spared = torch.remainder(row, 2).floor() != torch.remainder(column, 2).floor()
        field = torch.remainder(row.long(), cells) * _CELLS + torch.remainder(column.long(), cells)
        cut = draws["fields"].flatten(1).gather(1, field.flatten(1)).view_as(field) < self.level(draws.severity)
        return torch.where((is_spared | ~cut)[:, None], images, GREY)


class CausticRefraction(OfBar):
    """Seen through moving water that bends and brightens it. Draws: `time`, `size`."""

    name, highest = "caustic_refraction", 0.5
    uniforms = dict.fromkeys(("time", "size"), ())
    eta, lighting = 4.0, 2.0

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        height, width = images.shape[-2:]
        top, left = (side - height) // 2, (side - width) // 2
        ends = torch.arange(side, dtype=torch.float64, device=images.device)
        light = self._light(ends.view(1, -1, 1), ends.view(1, 1, -1), draws, side)
        around = functional.pad(light, (1, 1, 1, 1))[:, top : top + height + 2, left : left + width + 2]
        down = around[:, 2:, 1:-1] - around[:, :-2, 1:-1]
        along = around[:, 1:-1, 2:] - around[:, 1:-1, :-2]
        upright = 1 / (down**2 + along**2 + 1).sqrt()  # of the surface, across the ray
        bend = torch.asin(torch.sin(torch.acos(upright)) / self.eta)
        flat = (down**2 + along**2).sqrt().clamp_min(1e-300)
        # The ray leaves in the plane of itself and the normal, turned from the normal by `bend`.
        aside = (torch.cos(bend) * flat - torch.sin(bend)) * upright / flat
        strength = self.level(draws.severity) * side
        moves = [
            torch.where(upright >= 1 - 1e-3, 0.0, (aside * each * strength * 1000).round() / 1000)
            for each in (down, along)
        ]
        values = sampled(images.double() / 255, y - top + moves[0], x - left + moves[1])
        lit = (down - along) * (float(self.constants(draws.severity)) * self.lighting / 10)
        return ((values + lit[:, None]).clamp(0, 1) * 255).to(torch.uint8)

    def _light(self, y: Tensor, x: Tensor, draws: Draws, side: int) -> Tensor:
        time, size = self.of(draws, "time", 0.5, 2), self.of(draws, "size", 0.75, 1.25) * side
        down, along = (torch.remainder(each / size, 1) * _TAU - 250 for each in (y, x))
        down, along = down + 0 * along, along + 0 * down
        first, second, light = down, along, torch.ones_like(down)
        for turn in range(1, _TURNS + 1):
            at = time * (1 - 3.5 / turn)
            first, second = (
                down + torch.cos(at - first) + torch.sin(at + second),
                along + torch.sin(at - second) + torch.cos(at + first),
            )
            far = (down / (torch.sin(first + at) / 0.005)) ** 2 + (along / (torch.cos(second + at) / 0.005)) ** 2
            light = light + 1 / far.sqrt()
        bright = ((1.17 - (light / _TURNS) ** 1.4).abs() ** 8).clamp(0, 1)
        return _softened(bright)


def _softened(light: Tensor) -> Tensor:
    """Return light (B, S, S) under a Gaussian of sigma 1, four pixels to each side, mirrored at the borders."""
    offsets = torch.arange(-4, 5, dtype=torch.float64, device=light.device)
    weights = torch.exp(-0.5 * offsets**2)
    weights = (weights / weights.sum()).view(1, 1, -1, 1)
    places = torch.arange(-4, light.shape[1] + 4, device=light.device)
    mirrored = torch.where(places < 0, -1 - places, places)
    mirrored = torch.where(mirrored >= light.shape[1], 2 * light.shape[1] - 1 - mirrored, mirrored)
    for _ in range(2):
        light = functional.conv2d(light[:, mirrored][:, None], weights)[:, 0].transpose(1, 2)
    return light


def sampled(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return images (B, C, H, W) between their pixels at rows and columns (B, h, w), as (B, C, h, w); black outside."""
    height, width = images.shape[-2:]
    top, left = y.floor(), x.floor()

    def at(down: int, right: int) -> Tensor:
        row, column = (top + down).long(), (left + right).long()
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(1)
        values = images.flatten(2).gather(2, place[:, None].expand(-1, images.shape[1], -1))
        return values.view(*images.shape[:2], *y.shape[1:]) * inside[:, None]

    # In the reference's order, since a last bit may cost a level.
    upper, lower = (
        at(down, 0) * (1 - x + left)[:, None] + at(down, 1) * (1 - (left + 1) + x)[:, None] for down in (0, 1)
    )
    return upper * (1 - y + top)[:, None] + lower * (1 - (top + 1) + y)[:, None]
