"""Distance of a walk from a reference motion: joints over a gait cycle, and the phase of the foot contacts.

`T` steps, `N` robots, `J` joints, `K` feet, `P` points of a cycle. Independent of the discriminator.
"""

import math

import torch
from torch import Tensor

POINTS = 32
"""Points at which a cycle is compared."""
# Range of stride frequencies of walking robots, Hz.
SLOWEST, FASTEST = 0.8, 6.0


def stride_frequency(joint_pos: Tensor, period: float) -> Tensor:
    """Strides per second `(N,)` of joint positions `(T, N, J)`, sampled every `period` seconds.

    The peak of the power spectrum summed over joints, refined between frequency bins by a parabola through the peak.
    """
    steps = joint_pos.shape[0]
    window = torch.hann_window(steps, periodic=False, dtype=torch.float64)[:, None, None]
    centered = (joint_pos.double() - joint_pos.double().mean(dim=0)) * window
    power = torch.fft.rfft(centered, dim=0).abs().square().sum(dim=2)
    spacing = 1.0 / (steps * period)
    low, high = max(1, math.ceil(SLOWEST / spacing)), min(len(power) - 2, int(FASTEST / spacing))
    peak = power[low : high + 1].argmax(dim=0) + low
    left, middle, right = (power.gather(0, (peak + shift)[None])[0].clamp(min=1e-30).log() for shift in (-1, 0, 1))
    curve = left - 2.0 * middle + right
    shift = torch.where(curve.abs() > 1e-9, 0.5 * (left - right) / curve, torch.zeros_like(curve))
    return (peak + shift.clamp(-0.5, 0.5)) * spacing


def gait_cycles(joint_pos: Tensor, frequency: float, period: float, points: int = POINTS) -> Tensor:
    """Cycles `(C, P, J)` of the joint positions `(T, J)` of one robot, interpolated to `P` points per stride."""
    steps = joint_pos.shape[0]
    stride = 1.0 / (frequency * period)
    count = int((steps - 1) / stride)
    place = (torch.arange(count, dtype=torch.float64)[:, None] + torch.arange(points) / points) * stride
    low = place.floor().long().clamp(max=steps - 2)
    weight = (place - low)[..., None].to(joint_pos.dtype)
    return torch.lerp(joint_pos[low], joint_pos[low + 1], weight)


def cycle_distance(cycles: Tensor, reference: Tensor) -> Tensor:
    """Root mean square distance `(C,)`, rad, of cycles `(C, P, J)` from a reference cycle `(P, J)`.

    Each cycle is compared at its best-matching phase.
    """
    shifted = torch.stack([reference.roll(shift, dims=0) for shift in range(len(reference))])
    squares = (cycles[:, None] - shifted[None]).square().mean(dim=(2, 3))
    return squares.amin(dim=1).sqrt()


def joint_distance(joint_pos: Tensor, reference: Tensor, period: float) -> Tensor:
    """Mean distance `(N,)`, rad, of the gait cycles in `(T, N, J)` from a reference cycle `(P, J)`."""
    frequencies = stride_frequency(joint_pos, period)
    return torch.stack(
        [
            cycle_distance(gait_cycles(joint_pos[:, robot], float(frequency), period, len(reference)), reference).mean()
            for robot, frequency in enumerate(frequencies)
        ]
    )


def contact_offsets(contact: Tensor, frequency: Tensor, period: float) -> Tensor:
    """Phase `(N, K)` of the contacts `(T, N, K)` of each foot ahead of the first foot, in strides from -0.5 to 0.5."""
    time = torch.arange(contact.shape[0], dtype=torch.float64) * period
    wave = torch.exp(-2j * math.pi * time[:, None] * frequency.double())
    beat = (wave[..., None] * (contact.double() - contact.double().mean(dim=0))).sum(dim=0)
    return torch.angle(beat * beat[:, :1].conj()) / (2.0 * math.pi)


def offset_error(offsets: Tensor, expected: Tensor) -> Tensor:
    """Distance of phases in strides, from 0 to 0.5, wrapped around."""
    return torch.remainder(offsets - expected + 0.5, 1.0).sub(0.5).abs()
