"""1/f noise: random fields whose amplitude falls with a power of the frequency, as that of
photographs does.

Baradad et al. 2021, "Learning to see by looking at noise" (arXiv 2106.05963), their statistical
image models. Here the exponent is that of an isotropic spectrum, and colours are mixtures of
fields: the ranges are heuristic.
"""

import torch
from torch import Tensor

from dfme.queries.programs.canvas import in_chunks, uniform
from dfme.spec import ImageSpec

EXPONENTS = (0.0, 2.0)  # of the amplitude: 0 is white noise; photographs have about 1
CONTRASTS = (0.05, 0.5)  # standard deviation of the field, where 1 is the whole range of a pixel


@in_chunks
def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    # Fields of mean 0 are mixed to colours of any correlation, then scaled and moved to a random
    # mean.
    channels = spec.shape[0]
    mixing_BCC = torch.randn(count, channels, channels, generator=rng, device=rng.device)
    mixing_BCC /= mixing_BCC.norm(dim=2, keepdim=True)
    mixing_BCC *= uniform((count, 1, 1), *CONTRASTS, rng)
    mean_BC1 = uniform((count, channels, 1), 0, 1, rng)
    exponent_B = uniform((count,), *EXPONENTS, rng)
    fields_BCN = power_law_fields(exponent_B, spec.shape, rng).flatten(2)
    return torch.baddbmm(mean_BC1, mixing_BCC, fields_BCN).view(count, *spec.shape)


def power_law_fields(
    exponent_B: Tensor, shape: tuple[int, int, int], rng: torch.Generator
) -> Tensor:
    """Gaussian fields (B, C, H, W) of mean 0 whose amplitude spectrum is frequency ** -exponent.

    They are periodic: what leaves at one edge comes in at the opposite one. The expected variance
    is 1 (Parseval: that of white noise times the filter's mean square), unless H * W is 1.
    """
    _, height, width = shape
    device = exponent_B.device
    fy_H1 = torch.fft.fftfreq(height, device=device).unsqueeze(1)
    fx_F = torch.fft.rfftfreq(width, device=device)
    log_frequency_HF = fy_H1.hypot(fx_F).log()
    gain_BHF = torch.exp(-exponent_B.view(-1, 1, 1) * log_frequency_HF)
    gain_BHF[:, 0, 0] = 0  # frequency 0 is the mean
    # Every column stands for a negative frequency too, but for the first and, where W is even, the
    # last.
    twice_F = torch.where((fx_F == 0) | (fx_F == 0.5), 1.0, 2.0)
    mean_square_B = (gain_BHF.square() * twice_F).sum((1, 2)) / (height * width)
    gain_BHF /= mean_square_B.sqrt().clamp_min(1e-12).view(-1, 1, 1)
    white_BCHW = torch.randn(len(exponent_B), *shape, generator=rng, device=device)
    spectrum_BCHF = torch.fft.rfft2(white_BCHW).mul_(gain_BHF.unsqueeze(1))
    fields_BCHW: Tensor = torch.fft.irfft2(spectrum_BCHF, s=(height, width))
    return fields_BCHW
