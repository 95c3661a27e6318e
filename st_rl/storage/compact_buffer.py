"""Observations stored with fewer bits than float32 per component, so that rollouts of images fit into memory."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from st_rl.utils.tensors.segments import Segments, segment_slices

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "uint8": torch.uint8}


def find_dtypes(dtypes: Mapping[str, str], *segments: Segments | None) -> dict[str, torch.dtype]:
    """Return component -> torch dtype; ValueError for unknown components or dtypes."""
    known = {name for mapping in segments for name in mapping or ()}
    unknown = [name for name in dtypes if name not in known]
    if unknown:
        raise ValueError(f"obs_dtypes names {unknown}, which no observation has; there are {sorted(known)}")
    wrong = {name: dtype for name, dtype in dtypes.items() if str(dtype) not in DTYPES}
    if wrong:
        raise ValueError(f"obs_dtypes has {wrong}; use one of: {', '.join(DTYPES)}")
    return {name: DTYPES[str(dtype)] for name, dtype in dtypes.items()}


def encode(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to the stored dtype; uint8 clips to [0, 1] and quantizes in steps of 1/255."""
    if dtype == torch.uint8:
        return (values.clamp(0.0, 1.0) * 255.0).round_().to(dtype)
    return values.to(dtype)


def decode(values: Tensor) -> Tensor:
    """Convert stored values back to float32."""
    return values.to(torch.float32) / 255.0 if values.dtype == torch.uint8 else values.to(torch.float32)


class CompactBuffer:
    """A buffer `(T, N, O)` with columns stored in several tensors of different dtypes; indexing returns float32."""

    def __init__(self, parts: Sequence[Tensor]):
        self.parts = list(parts)

    @classmethod
    def zeros(
        cls, leading: Sequence[int], segments: Segments, dtypes: Mapping[str, torch.dtype], device: torch.device
    ) -> "CompactBuffer":
        """Allocate zeros `(*leading, O)`; neighboring components of one dtype (default float32) share a tensor."""
        widths: list[tuple[int, torch.dtype]] = []
        for name, where in segment_slices(segments).items():
            dtype, size = dtypes.get(name, torch.float32), where.stop - where.start
            if widths and widths[-1][1] == dtype:
                widths[-1] = (widths[-1][0] + size, dtype)
            else:
                widths.append((size, dtype))
        return cls([torch.zeros(*leading, size, dtype=dtype, device=device) for size, dtype in widths])

    @property
    def shape(self) -> torch.Size:
        """Shape `(T, N, O)`."""
        return torch.Size((*self.parts[0].shape[:-1], sum(part.shape[-1] for part in self.parts)))

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return sum(part.numel() * part.element_size() for part in self.parts)

    @property
    def row(self) -> Tensor:
        """A meta tensor with the shape of one row."""
        return torch.empty(self.shape[1:], device="meta")

    def write(self, row: int, values: Tensor) -> None:
        """Store `values (N, O)` in one row."""
        for part, columns in zip(self.parts, values.split([part.shape[-1] for part in self.parts], dim=-1)):
            part[row].copy_(encode(columns, part.dtype))

    def _read(self, select: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([decode(select(part)) for part in self.parts], dim=-1)

    def __getitem__(self, index: slice | Tensor | tuple[slice | Tensor, ...]) -> Tensor:
        """Index rows and environments; returns all columns in float32."""
        return self._read(lambda part: part[index])

    def flatten(self, start: int, end: int) -> "CompactBuffer":
        """Flatten leading axes."""
        return CompactBuffer([part.flatten(start, end) for part in self.parts])

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Select rows; returns float32."""
        return self._read(lambda part: part.index_select(dim, index))
