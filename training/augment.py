"""Change training images as other sources of images would: drawings, grey images, noise, blur, darkness."""

import torch
from torch import Tensor
from torch.nn import functional as F

GREY = (0.299, 0.587, 0.114)


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return images (n, 3, s, s), 0 to 255, as floats: each cropped and flipped randomly, most of them changed further.

    Args:
        pixels: the images.
        generator: source of randomness, on the same device.
    """
    changes = {_colours: 0.4, _grey: 0.15, _posterise: 0.1, _blur: 0.15, _lines: 0.1, _light: 0.3, _coarse: 0.1}
    x = _crop(pixels.float(), generator)
    for change, share in {**changes, _noise: 0.2, _mix: 0.1}.items():
        chosen = torch.nonzero(_uniform(len(x), generator) < share)[:, 0]
        if len(chosen):
            x[chosen] = change(x[chosen], generator).clamp(0, 255)
    return x


def _uniform(n: int, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=generator, device=generator.device)


def _each(n: int, generator: torch.Generator, low: float, high: float) -> Tensor:
    return _uniform(n, generator, low, high)[:, None, None, None]


def _crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a part of at least a third of the area, flipped half of the time."""
    n = len(x)
    side = _uniform(2 * n, generator, 0.35, 1.0).sqrt().view(n, 2)
    flip = torch.where(_uniform(n, generator) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=x.device)
    theta[:, 0, 0] = side[:, 0] * flip
    theta[:, 1, 1] = side[:, 1]
    theta[:, :, 2] = _uniform(2 * n, generator, -1, 1).view(n, 2) * (1 - side)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=False).clamp(0, 255)


def _colours(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mix the channels randomly, around the identity."""
    mix = 0.25 * torch.randn(len(x), 3, 3, generator=generator, device=x.device) + torch.eye(3, device=x.device)
    return torch.einsum("nij,njhw->nihw", mix, x - 128) + 128


def _grey(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.einsum("c,nchw->nhw", torch.tensor(GREY, device=x.device), x)[:, None].expand_as(x)


def _posterise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Reduce to two to six levels, as in drawings and emoji."""
    step = 255 / _each(len(x), generator, 1, 5).round()
    return (x / step).round() * step


def _blur(x: Tensor, generator: torch.Generator) -> Tensor:
    return _smooth(x, float(_uniform(1, generator, 0.7, 3.5)))


def _smooth(x: Tensor, spread: float) -> Tensor:
    at = torch.arange(-9, 10, device=x.device)
    kernel = torch.softmax(-(at**2) / (2 * spread**2), 0).expand(3, 1, 1, -1)
    padded = F.pad(x, (9, 9, 9, 9), mode="reflect")
    return F.conv2d(F.conv2d(padded, kernel, groups=3), kernel.transpose(2, 3), groups=3)


def _lines(x: Tensor, generator: torch.Generator) -> Tensor:
    """Draw dark outlines on white paper, or bright ones on black."""
    grey = _smooth(_grey(x, generator), float(_uniform(1, generator, 0.5, 1.5)))
    edges = (grey - _smooth(grey, 3.0)).abs() * _each(len(x), generator, 4, 16)
    return torch.where(_each(len(x), generator, 0, 1) < 0.8, 255 - edges, edges)


def _light(x: Tensor, generator: torch.Generator) -> Tensor:
    """Make images darker or brighter, with more or less contrast."""
    gain = _each(len(x), generator, 0.15, 1.6)
    shift = _each(len(x), generator, -40, 40)
    return 255 * (x / 255) ** _each(len(x), generator, 0.6, 1.8) * gain + shift


def _coarse(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shrink to few pixels, and enlarge again."""
    side = int(_uniform(1, generator, 8, 48))
    small = F.interpolate(x, size=(side, side), mode="area")
    return F.interpolate(small, size=x.shape[-2:], mode="bicubic", align_corners=False)


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, device=x.device)
    return x + _each(len(x), generator, 2, 55) * noise


def _mix(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the average with another image."""
    share = _each(len(x), generator, 0.3, 0.7)
    return share * x + (1 - share) * x.flip(0)
