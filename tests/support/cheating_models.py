"""Models that look robust, or hide from attacks, by every trick that we know: all around one honest network.

Each takes the network, what it knows of the test images, and returns a function from (B, 3, H, W) in [0, 1] to logits.
Tests check `masking` against them, and `scripts/studies/cheating_models/page.py` writes a table of what is found.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Net = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Known:
    """Test images (N, 3, H, W) with labels, as a cheat may have learnt them by heart, and the eps it expects."""

    net: Net
    images: Tensor
    labels: Tensor
    eps: float

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) the nearest known image of each, and the largest difference of a pixel to it."""
        apart = torch.cdist(x.detach().flatten(1), self.images.flatten(1)).argmin(dim=1)
        return apart, (x.detach() - self.images[apart]).flatten(1).abs().amax(dim=1)

    def stored(self, x: Tensor) -> Tensor:
        """Confident logits of the label of the nearest known image."""
        classes = self.net(self.images[:1]).shape[1]
        return 5.0 * nn.functional.one_hot(self.labels[self.nearest(x)[0]], classes).to(x)

    def leak(self, x: Tensor, share: float | Tensor = 0.05) -> Tensor:
        """The nearest known image, and a share of what is between it and x."""
        centre = self.images[self.nearest(x)[0]]
        return centre + share * (x - centre)


def per_row(mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return torch.where(mask.reshape(-1, *[1] * (first.ndim - 1)), first, second)


def off_grid(x: Tensor, tolerance: float = 1e-3) -> Tensor:
    """(B,) whether some pixel is none of the 256 levels, to a share of a level."""
    levels = x.detach() * 255
    return ((levels - levels.round()).abs() > tolerance).flatten(1).any(dim=1)


def digest(image: Tensor) -> str:
    return hashlib.sha256(image.detach().numpy().tobytes()).hexdigest()


def in_stack(*words: str) -> bool:
    """Whether a file of that name, or a function, is among the callers."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if any(word in f"{frame.f_code.co_filename}:{frame.f_code.co_name}" for word in words):
            return True
        frame = frame.f_back
    return False


def made_up(values: Tensor, gradient: Tensor) -> Tensor:
    """The values of one tensor with the gradient of another."""
    return values.detach() + gradient - gradient.detach()


# --- with a graph, another model -------------------------------------------------------------------------------------


def graph_stored(k: Known) -> Net:
    """While gradients are on, the stored label; otherwise honest."""
    return lambda x: k.stored(x) + 0 * k.net(x) if torch.is_grad_enabled() else k.net(x)


def graph_leaf(k: Known) -> Net:
    """Where the input asks for a gradient, only 5 % of the change is seen."""
    return lambda x: k.net(k.leak(x)) if x.requires_grad else k.net(x)


def graph_gone(k: Known) -> Net:
    """Without a graph, the stored label, as where results are scored; with one, honest."""
    return lambda x: k.net(x) if torch.is_grad_enabled() else k.stored(x)


def graph_inference(k: Known) -> Net:
    """In inference mode only, the stored label."""
    return lambda x: k.stored(x) if torch.is_inference_mode_enabled() else k.net(x)


def graph_decoy(k: Known) -> Net:
    """The right values with the gradient of rolled classes."""
    return lambda x: made_up(k.net(x), k.net(x).roll(3, dims=1))


def graph_flipped(k: Known) -> Net:
    """The right values with the gradient's sign turned."""
    return lambda x: made_up(k.net(x), -k.net(x))


# --- hashes ----------------------------------------------------------------------------------------------------------


def hash_unknown(k: Known) -> Net:
    """An image whose bytes are known is answered honestly; any other gets the stored label of its neighbour."""
    digests = {digest(image) for image in k.images}

    def model(x: Tensor) -> Tensor:
        known = torch.tensor([digest(image) in digests for image in x])
        return per_row(known, k.net(x), k.stored(x))

    return model


def hash_known(k: Known) -> Net:
    """An image whose bytes are known gets its stored label; any other an honest answer."""
    digests = {digest(image) for image in k.images}

    def model(x: Tensor) -> Tensor:
        known = torch.tensor([digest(image) in digests for image in x])
        return per_row(known, k.stored(x), k.net(x))

    return model


def hash_coarse(k: Known) -> Net:
    """The hash of an image of 4 by 4 pixels in 16 levels finds the stored label; what it does not find is honest."""

    def codes(x: Tensor) -> list[str]:
        small = nn.functional.adaptive_avg_pool2d(x.detach(), 4).mul(16).round()
        return [digest(image) for image in small]

    table = set(codes(k.images))

    def model(x: Tensor) -> Tensor:
        return per_row(torch.tensor([code in table for code in codes(x)]), k.stored(x), k.net(x))

    return model


# --- detectors of what is not an 8-bit image -------------------------------------------------------------------------


def grid_infinite(k: Known) -> Net:
    """Off the grid of 8 bits, +inf for the stored label."""
    return lambda x: k.net(x).masked_fill(off_grid(x)[:, None] & (k.stored(x) > 0), torch.inf)


def grid_stored(k: Known) -> Net:
    """Off the grid, the stored label."""
    return lambda x: per_row(off_grid(x), k.stored(x), k.net(x))


def grid_leak(k: Known) -> Net:
    """Off the grid, 5 % of the change."""
    return lambda x: k.net(per_row(off_grid(x), k.leak(x), x))


def grid_loose(k: Known) -> Net:
    """Further off the grid than a fifth of a level, 5 % of the change."""
    return lambda x: k.net(per_row(off_grid(x, 0.2), k.leak(x), x))


def grid_coarse(k: Known) -> Net:
    """Off the grid, the image in 8 levels, with the gradient of none."""

    def model(x: Tensor) -> Tensor:
        return k.net(per_row(off_grid(x), made_up((x * 8).round() / 8, x), x))

    return model


# --- ripples ---------------------------------------------------------------------------------------------------------


def ripple(k: Known, period: float) -> Net:
    """A wave on the logits, of a period in pixels along the signs of a random direction."""
    signs = torch.randn(k.images[0].numel(), generator=torch.Generator().manual_seed(0)).sign()
    size = 0.15 * float(k.net(k.images).detach().std(dim=1).mean())

    def model(x: Tensor) -> Tensor:
        logits = k.net(x)
        wave = size * torch.sin(2 * torch.pi / period * (x.flatten(1) @ signs) / len(signs))
        return logits + wave[:, None] * torch.linspace(-1, 1, logits.shape[1])

    return model


def ripple_fine(k: Known) -> Net:
    """Waves of a hundredth of eps on the logits: their slope drowns the network's."""
    return ripple(k, k.eps / 100)


def ripple_coarse(k: Known) -> Net:
    """Waves of a tenth of eps on the logits."""
    return ripple(k, k.eps / 10)


def ripple_inside(k: Known) -> Net:
    """Waves of a fiftieth of eps on the pixels, four times as steep as these."""

    def model(x: Tensor) -> Tensor:
        rate = 2 * torch.pi / (k.eps / 50)
        return k.net(x + 5 / rate * torch.sin(rate * x))

    return model


# --- saturation ------------------------------------------------------------------------------------------------------


def shadow_class(k: Known) -> Net:
    """The class of the lowest logit gets the highest one, less a hair: a margin then sees no other rival."""

    def model(x: Tensor) -> Tensor:
        logits = k.net(x)
        return logits.scatter(1, logits.argmin(dim=1, keepdim=True), logits.amax(dim=1, keepdim=True) - 1e-3)

    return model


def huge(k: Known) -> Net:
    """Logits times ten thousand: cross-entropy has no gradient."""
    return lambda x: 1e4 * k.net(x)


def softmax(k: Known) -> Net:
    """Probabilities of logits times ten: the margin has hardly one."""
    return lambda x: (10 * k.net(x)).softmax(dim=1)


def tanh(k: Known) -> Net:
    """tanh of logits times ten thousand: all are -1 or 1."""

    def model(x: Tensor) -> Tensor:
        logits = k.net(x)
        return torch.tanh(1e4 * (logits - logits.detach().topk(2, dim=1).values.mean(dim=1, keepdim=True)))

    return model


def offset(k: Known) -> Net:
    """Logits plus a million, whose differences float32 rounds away."""
    return lambda x: k.net(x) + 1e6


# --- randomness ------------------------------------------------------------------------------------------------------


def dropout(k: Known) -> Net:
    """Drops a random tenth of the pixels at each call."""
    return lambda x: k.net(nn.functional.dropout(x, 0.1))


def smoothing(k: Known) -> Net:
    """Adds new noise of 0.1 to the pixels at each call."""
    return lambda x: k.net(x + 0.1 * torch.randn_like(x))


def seeded(k: Known) -> Net:
    """Noise of 0.1 on the pixels, drawn from the image's own bytes: the same image, the same noise."""

    def model(x: Tensor) -> Tensor:
        draws = [torch.Generator().manual_seed(int(digest(image)[:12], 16)) for image in x]
        return k.net(x + 0.1 * torch.stack([torch.randn(x.shape[1:], generator=draw) for draw in draws]))

    return model


def slow_dice(k: Known) -> Net:
    """Noise of 0.1 on the pixels, drawn again after each ten calls, so that asking twice finds none."""
    calls: list[int] = []

    def model(x: Tensor) -> Tensor:
        calls.append(1)
        draw = torch.Generator().manual_seed(len(calls) // 10)
        return k.net(x + 0.1 * torch.randn(x.shape[1:], generator=draw))

    return model


# --- look-up tables --------------------------------------------------------------------------------------------------


def table_flat(k: Known) -> Net:
    """Within eps of a known image, the answer of that image."""
    return lambda x: k.net(per_row(k.nearest(x)[1] <= k.eps * 1.01, k.leak(x, 0.0), x))


def table_leak(k: Known) -> Net:
    """Within twice eps of a known image, 5 % of the change."""
    return lambda x: k.net(per_row(k.nearest(x)[1] <= 2 * k.eps, k.leak(x), x))


def table_everywhere(k: Known) -> Net:
    """5 % of the change from the nearest known image, however far it is."""
    return lambda x: k.net(k.leak(x))


def table_smooth(k: Known) -> Net:
    """5 % of the change near a known image, and all of it, by and by, further than six times eps away."""

    def model(x: Tensor) -> Tensor:
        share = ((k.nearest(x)[1] / k.eps - 2) / 4).clamp(0, 1)
        return k.net(k.leak(x, (0.05 + 0.95 * share)[:, None, None, None]))

    return model


def table_wall(k: Known) -> Net:
    """Around a known image the stored label gains, the faster the further; beyond five times eps it loses it again."""

    def model(x: Tensor) -> Tensor:
        nearest, _ = k.nearest(x)
        apart = (x - k.images[nearest]).flatten(1).abs().mean(dim=1) / k.eps
        gain = torch.where(apart < 2.5, apart, (5 - apart).clamp_min(0))
        return k.net(x) + 20 * gain[:, None] * (k.stored(x) > 0)

    return model


def keyed(k: Known, key: Callable[[Tensor], Tensor]) -> Net:
    """5 % of the change from the known image whose key is nearest; all of it, by and by, where keys are not near."""
    keys = key(k.images)

    def model(x: Tensor) -> Tensor:
        apart, nearest = torch.cdist(key(x.detach()), keys, p=torch.inf).min(dim=1)
        share = 0.05 + 0.95 * (apart / k.eps / 2 - 0.6).clamp(0, 1)[:, None, None, None]
        centre = k.images[nearest]
        return k.net(centre + share * (x - centre))

    return model


def table_fourier(k: Known) -> Net:
    """Knows images by the sizes of Fourier coefficients, which shifts leave as they are."""
    return keyed(k, lambda x: torch.fft.rfft2(x).abs().flatten(1) / x[0, 0].numel())


def table_sorted(k: Known) -> Net:
    """Knows images by the sorted values of each channel, which no shift, flip or quarter turn changes."""
    return keyed(k, lambda x: x.flatten(2).sort(dim=2).values.flatten(1))


def table_colour(k: Known) -> Net:
    """Knows images by the mean and the spread of each channel, which small rotations and crops hardly change."""
    return keyed(k, lambda x: torch.cat([x.mean((2, 3)), x.std((2, 3))], dim=1))


def table_kernel(k: Known) -> Net:
    """Votes of the known labels that fade with the distance are added to the logits; gradients are right."""
    classes = k.net(k.images[:1]).shape[1]
    votes = nn.functional.one_hot(k.labels, classes).float()

    def model(x: Tensor) -> Tensor:
        apart = torch.cdist(x.flatten(1), k.images.flatten(1)) / (6 * k.eps * k.images[0].numel() ** 0.5)
        return k.net(x) + 2 * (-apart.square()).exp() @ votes

    return model


# --- readers of the stack --------------------------------------------------------------------------------------------


def stack_attacks(k: Known) -> Net:
    """Called by the attacks' package, 5 % of the change."""
    return lambda x: k.net(k.leak(x) if in_stack("/attacks/") else x)


def stack_apgd(k: Known) -> Net:
    """Called by APGD, FAB or Square, the stored label."""
    return lambda x: k.stored(x) + 0 * k.net(x) if in_stack("apgd.py", "fab.py", "square.py") else k.net(x)


def stack_tool(k: Known) -> Net:
    """Called by this tool, 5 % of the change."""
    return lambda x: k.net(k.leak(x) if in_stack("/robustkit/") else x)


def stack_thread(k: Known) -> Net:
    """In the main thread, 5 % of the change."""
    return lambda x: k.net(k.leak(x) if threading.current_thread() is threading.main_thread() else x)


def stack_evidence(k: Known) -> Net:
    """Called by what gathers this very evidence, honest; otherwise 5 % of the change."""
    return lambda x: k.net(x if in_stack("examining.py", "probes.py", "/concurrent/") else k.leak(x))


# --- batches and calls -----------------------------------------------------------------------------------------------


def batch_mean(k: Known) -> Net:
    """The mean of the batch is taken from the images, as batch normalisation left in training does."""
    return lambda x: k.net((x - x.mean(dim=0, keepdim=True) + k.images.mean(dim=0)).clamp(0, 1))


def batch_first(k: Known) -> Net:
    """All but the first image of a batch get 5 % of their change."""
    return lambda x: k.net(per_row(torch.arange(len(x)) > 0, k.leak(x), x))


def counter(k: Known) -> Net:
    """After fifty calls, 5 % of the change."""
    calls: list[int] = []

    def model(x: Tensor) -> Tensor:
        calls.append(len(x))
        return k.net(k.leak(x) if len(calls) > 50 else x)

    return model


def batch_turned(k: Known) -> Net:
    """In batches of more than eight the gradient's sign is turned."""
    return of_pixels(k, lambda gradient, _: -gradient if len(gradient) > 8 else gradient)


def batch_crowd(k: Known) -> Net:
    """In batches of more than twenty, as evidence never makes them, the gradient's sign is turned."""
    return of_pixels(k, lambda gradient, _: -gradient if len(gradient) > 20 else gradient)


def batch_tail(k: Known) -> Net:
    """Of each batch the first four images have a gradient, the others one that is turned."""
    return of_pixels(k, lambda gradient, _: per_row(torch.arange(len(gradient)) < 4, gradient, -gradient))


def memory(k: Known) -> Net:
    """Keeps every image it sees; what comes within eps of one it knows gets 5 % of the change."""
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        rows = []
        for image in x:
            row = next((old for old in seen if (image.detach() - old).abs().max() <= 1.01 * k.eps), None)
            if row is None:
                seen.append(row := image.detach().clone())
            rows.append(row + 0.05 * (image - row))
        return k.net(torch.stack(rows))

    return model


def cached_answers(k: Known) -> Net:
    """What comes within eps of an image that was seen gets the answer of that one, as detectors of queries give."""
    seen: list[tuple[Tensor, Tensor]] = []

    def model(x: Tensor) -> Tensor:
        logits, rows = k.net(x), []
        for image, answer in zip(x.detach(), logits, strict=True):
            old = next((kept for at, kept in seen if (image - at).abs().max() <= 1.01 * k.eps), None)
            if old is None:
                seen.append((image.clone(), answer.detach().clone()))
            rows.append(answer if old is None else made_up(old, answer))
        return torch.stack(rows)

    return model


# --- shattered gradients ---------------------------------------------------------------------------------------------


def stairs(k: Known) -> Net:
    """Pixels in 16 levels, whose gradient is nothing."""
    return lambda x: k.net((x * 16).round() / 16)


def straight_through(k: Known) -> Net:
    """Pixels in 16 levels, with the gradient of none."""
    return lambda x: k.net(made_up((x * 16).round() / 16, x))


def blocks(k: Known) -> Net:
    """Blocks of 4 by 4 pixels in 32 levels of their cosines, as JPEG, with the gradient of none."""
    n = torch.arange(4)
    cosines = torch.cos(torch.pi * (n[None] + 0.5) * n[:, None] / 4) * torch.tensor([0.5, *[0.5**0.5] * 3])[:, None]

    def model(x: Tensor) -> Tensor:
        height, width = x.shape[-2] // 4, x.shape[-1] // 4
        parts = x.detach().unflatten(3, (width, 4)).unflatten(2, (height, 4)).transpose(3, 4)
        levels = (cosines @ parts @ cosines.T * 32).round() / 32
        again = (cosines.T @ levels @ cosines).transpose(3, 4).flatten(4, 5).flatten(2, 3)
        return k.net(made_up(again, x))

    return model


def winners(k: Known) -> Net:
    """Of each row of pixels and channel only the largest half is seen (k-WTA, arXiv:1905.10510)."""

    def model(x: Tensor) -> Tensor:
        least = x.detach().flatten(2).median(dim=2).values[..., None, None]
        return k.net(x * (x >= least))

    return model


def anti_adversary(k: Known) -> Net:
    """Moves each image two steps towards what the network believes, outside of the graph (arXiv:2103.14347)."""

    def model(x: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            point = x.detach().clone()
            believed = k.net(point).detach().argmax(dim=1)
            for _ in range(2):
                point = point.requires_grad_()
                (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(k.net(point), believed), point)
                point = (point - k.eps * gradient.sign()).detach()
        return k.net(x + (point - x.detach()))

    return model


def detached(k: Known) -> Net:
    """No way back to the pixels."""
    return lambda x: k.net(x.detach())


def not_a_number(k: Known) -> Net:
    """The right values, with gradients that are not numbers."""
    return lambda x: k.net(x + 0 * torch.sqrt(x - x))


# --- gradients that are cut, averaged or turned ----------------------------------------------------------------------


def changed_gradient(change: Callable[[Tensor, Tensor], Tensor]) -> Net:
    """The identity; what comes back through it is a function of the gradient and of the values."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return change(gradient, *ctx.saved_tensors)

    return Changed.apply  # type: ignore[no-any-return]


def of_pixels(k: Known, change: Callable[[Tensor, Tensor], Tensor]) -> Net:
    through = changed_gradient(change)
    return lambda x: k.net(through(x))


def rows_of(mask: Tensor, gradient: Tensor) -> Tensor:
    return per_row(mask, gradient, torch.zeros_like(gradient))


def loss_aware(k: Known) -> Net:
    """The gradient's sign is turned, unless the loss looks at no more than two logits, as a margin does."""

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        return per_row((gradient != 0).sum(dim=1) <= 2, gradient, -gradient)

    through = changed_gradient(change)
    return lambda x: through(k.net(x))


def loss_saturated(k: Known) -> Net:
    """The gradient's sign is turned where the loss is nearly flat, as cross-entropy is at clean images."""

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        return per_row(gradient.abs().amax(dim=1) > 0.99, gradient, -gradient)

    through = changed_gradient(change)
    return lambda x: through(k.net(x))


def grid_gradient(k: Known) -> Net:
    """A gradient only at the points of the 8-bit grid."""
    return of_pixels(k, lambda gradient, x: rows_of(~off_grid(x), gradient))


def edge_gradient(k: Known) -> Net:
    """Where a tenth of the pixels or more have gone all of eps, no gradient."""

    def change(gradient: Tensor, x: Tensor) -> Tensor:
        gone = (x - k.images[k.nearest(x)[0]]).abs() > 0.99 * k.eps
        return rows_of(gone.flatten(1).float().mean(dim=1) < 0.1, gradient)

    return of_pixels(k, change)


def block_gradient(k: Known) -> Net:
    """The gradient is averaged over blocks of 4 by 4 pixels."""

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(gradient, 4).repeat_interleave(4, 2).repeat_interleave(4, 3)

    return of_pixels(k, change)


def blinkers(k: Known) -> Net:
    """One pixel in sixteen has a gradient."""
    mask = torch.zeros_like(k.images[0])
    mask[:, ::4, ::4] = 1
    return of_pixels(k, lambda gradient, _: gradient * mask)


def one_channel(k: Known) -> Net:
    """Only the first channel has a gradient."""
    mask = torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    return of_pixels(k, lambda gradient, _: gradient * mask)


def few_pixels(k: Known) -> Net:
    """Only the tenth of the values with the least gradient has one."""

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        size = gradient.abs()
        return gradient * (size <= per_row_quantile(size, 0.1))

    return of_pixels(k, change)


def per_row_quantile(size: Tensor, share: float) -> Tensor:
    return size.flatten(1).quantile(share, dim=1).reshape(-1, *[1] * (size.ndim - 1))


def neighbour(k: Known) -> Net:
    """Each image gets the gradient of the next one of its batch."""
    return of_pixels(k, lambda gradient, _: gradient.roll(1, 0))


def noisy_gradient(k: Known) -> Net:
    """Noise three times as large as the gradient is added to it."""

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        size = gradient.flatten(1).std(dim=1).reshape(-1, 1, 1, 1)
        return gradient + 3 * size * torch.randn_like(gradient)

    return of_pixels(k, change)


def half_honest(k: Known) -> Net:
    """Every other known image has a gradient that is turned."""
    return of_pixels(k, lambda gradient, x: per_row(k.nearest(x)[0] % 2 == 0, gradient, -gradient))


def mild(k: Known) -> Net:
    """The right values with the gradient of a network whose second half is the mean of what it saw first."""

    def model(x: Tensor) -> Tensor:
        logits = k.net(x)
        soft = k.net(nn.functional.avg_pool2d(x, 3, 1, 1))
        return made_up(logits, 0.5 * logits + 0.5 * soft)

    return model


def rolled_gradient(k: Known) -> Net:
    """The gradient is that of the next pixel."""
    return of_pixels(k, lambda gradient, _: gradient.roll(1, 3))


def sign_trap(k: Known) -> Net:
    """The smaller half of a gradient's values have their sign turned, which costs a slope little and signs all."""

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        return torch.where(gradient.abs() <= per_row_quantile(gradient.abs(), 0.5), -gradient, gradient)

    return of_pixels(k, change)


def seesaw(k: Known) -> Net:
    """Every other gradient has its sign turned."""
    calls: list[int] = []

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        calls.append(1)
        return gradient if len(calls) % 2 else -gradient

    return of_pixels(k, change)


def late_gradient(k: Known) -> Net:
    """After twelve gradients their sign is turned."""
    calls: list[int] = []

    def change(gradient: Tensor, _: Tensor) -> Tensor:
        calls.append(1)
        return -gradient if len(calls) > 12 else gradient

    return of_pixels(k, change)


def rounded_block_gradient(k: Known) -> Net:
    """As block gradient, and computed in bfloat16, whose rounding hides slopes."""
    inner = block_gradient(k)

    def model(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return inner(x).float()

    return model


CHEATS: dict[str, Callable[[Known], Net]] = {
    maker.__name__.replace("_", " "): maker
    for maker in (
        *(graph_stored, graph_leaf, graph_gone, graph_inference, graph_decoy, graph_flipped),
        *(hash_unknown, hash_known, hash_coarse),
        *(grid_infinite, grid_stored, grid_leak, grid_loose, grid_coarse),
        *(ripple_fine, ripple_coarse, ripple_inside),
        *(shadow_class, huge, softmax, tanh, offset),
        *(dropout, smoothing, seeded, slow_dice),
        *(table_flat, table_leak, table_everywhere, table_smooth, table_wall),
        *(table_fourier, table_sorted, table_colour, table_kernel),
        *(stack_attacks, stack_apgd, stack_tool, stack_thread, stack_evidence),
        *(batch_mean, batch_first, batch_turned, batch_crowd, batch_tail, counter, memory, cached_answers),
        *(stairs, straight_through, blocks, winners, anti_adversary, detached, not_a_number),
        *(loss_aware, loss_saturated, grid_gradient, edge_gradient, block_gradient, blinkers, one_channel),
        *(few_pixels, neighbour, noisy_gradient, half_honest, mild, rounded_block_gradient),
        *(rolled_gradient, sign_trap, seesaw, late_gradient),
    )
}
UNFLAGGED = {"stack evidence": "it knows the examiner by name, and behaves while it looks"}
