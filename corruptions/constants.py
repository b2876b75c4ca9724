"""What a severity means: the constants of every corruption, severity 1 first.

imagenet: Hendrycks and Dietterich 2019, `imagenet_c/corruptions.py`; imagecorruptions 1.1.2 has the same ones.
cifar: the 32x32 images of CIFAR-10-C, `make_cifar_c.py` of the same authors. The larger constants would leave little
of an image that small.

The ten of ImageNet-C-bar and the five that CIFAR-10-C-bar alone has: Mintun, Kirillov and Xie 2021,
`imagenet_c_bar.csv` and `cifar10_c_bar.csv` of their code, levels from 0 to 10 of what each class calls the highest.
The six of LAION-C, the last here: Li et al. 2025, `apply_distortions.py` of their code.

One number or one tuple per severity:
gaussian_noise, speckle_noise: standard deviation. shot_noise: photons at full brightness. impulse_noise: share of
values hit. gaussian_blur: sigma. defocus_blur: radius, sigma of the antialiasing. glass_blur: sigma, largest
displacement, passes. motion_blur: radius, sigma. zoom_blur: end and step of the zoom factors (from 1, end excluded).
snow: mean, standard deviation, zoom, threshold, blur radius, blur sigma, share of the image kept as it is. frost:
weights of image and ice. fog: weight, decay of the roughness. spatter: mean, standard deviation, sigma, threshold,
weight or sigma of the stain, 1 for mud and 0 for water. contrast: factor. brightness: added value. saturate: factor
and addend of the saturation. jpeg_compression: quality. pixelate: scale. elastic_transform: strength, sigma, and the
largest shift of the affine map's three points, in pixels. caustic_refraction, inverse_sparkles, sparkles, perlin_noise,
blue_noise_sample, plasma_noise, checkerboard_cutout, cocentric_sine_waves, single_frequency_greyscale, brownish_noise,
pinch_and_twirl, ripple, circular_motion_blur, lines, transverse_chromatic_abberation: level. vertical_lines: number of
lines, rows of a step. geometric_shapes, stickers: how many. luminance_checkerboard: least and largest change of a level
of 255. glitched: amount. mosaic: side of a tile in pixels.
"""

from __future__ import annotations

from typing import Any

Table = dict[str, tuple[Any, Any, Any, Any, Any]]

IMAGENET: Table = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": (60, 25, 12, 5, 3),
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": (  # 244 where 224 was meant; the benchmark was made with it
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    ),
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": (25, 18, 15, 10, 7),
    "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": (1, 2, 3, 4, 6),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    "caustic_refraction": (2.35, 3.2, 4.9, 6.6, 9.15),
    "inverse_sparkles": (1, 2, 4, 9, 10),
    "sparkles": (1, 2, 3, 5, 6),
    "perlin_noise": (4.6, 5.2, 5.8, 7.6, 8.8),
    "blue_noise_sample": (0.8, 1.6, 2.4, 4, 5.6),
    "plasma_noise": (4.75, 7, 8.5, 9.25, 10),
    "checkerboard_cutout": (2, 3, 4, 5, 6),
    "cocentric_sine_waves": (3, 5, 8, 9, 10),
    "single_frequency_greyscale": (1, 1.5, 2, 4.5, 5),
    "brownish_noise": (1, 2, 3, 4, 5),
    "vertical_lines": ((224, 1), (178, 2), (112, 4), (84, 6), (60, 8)),
    "geometric_shapes": (150, 300, 600, 800, 1000),
    "luminance_checkerboard": ((0, 50), (50, 100), (100, 125), (125, 150), (150, 255)),
    "glitched": (2, 4, 5, 8, 10),
    "mosaic": (4, 6, 8, 16, 28),
    "stickers": (100, 200, 400, 600, 1200),
}

CIFAR: Table = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": (
        (0, 0, 32 * 0.08),
        (32 * 0.05, 32 * 0.2, 32 * 0.07),
        (32 * 0.08, 32 * 0.06, 32 * 0.06),
        (32 * 0.1, 32 * 0.04, 32 * 0.05),
        (32 * 0.1, 32 * 0.03, 32 * 0.03),
    ),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
    "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    "inverse_sparkles": (1, 1.5, 2.5, 4.5, 5),
    "sparkles": (0.7, 3.5, 5.6, 6.3, 7),
    "blue_noise_sample": (0.7, 1.4, 2.1, 3.5, 4.2),
    "checkerboard_cutout": (1, 2, 3, 4, 5),
    "brownish_noise": (2.5, 4, 5.5, 6.5, 7),
    "pinch_and_twirl": (5.5, 6, 6.5, 8.5, 10),
    "ripple": (5.5, 6, 6.5, 7.5, 8),
    "circular_motion_blur": (2.8, 3.6, 4.4, 5.2, 6),
    "lines": (0.5, 1, 1.5, 2, 2.5),
    "transverse_chromatic_abberation": (1, 2, 5, 9, 10),
}

PRESETS: dict[str, Table] = {"imagenet": IMAGENET, "cifar": CIFAR}
SEVERITIES = (1, 2, 3, 4, 5)
NEEDS_COLOUR = frozenset(
    [
        *("snow", "frost", "brightness", "saturate", "spatter", "jpeg_compression", "plasma_noise"),
        *("transverse_chromatic_abberation", "mosaic", "glitched", "vertical_lines", "geometric_shapes", "stickers"),
    ]
)
"""Those that are defined on RGB alone; the others do the same to each channel, however many."""
