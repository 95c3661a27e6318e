"""Writes frames as mp4 (H.264, plays in every browser) and converts mp4 to gif."""

import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np

from st_rl.utils.files import atomic_write


def require_ffmpeg() -> ModuleType:
    """The module `imageio_ffmpeg`, or an ImportError that names the extra to install."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError('videos need ffmpeg: pip install "st_rl[video]"') from error
    return imageio_ffmpeg


class VideoWriter:
    """Appends frames `(height, width, 3)` uint8 to a video."""

    def __init__(self, stream: Generator[None, np.ndarray | None, None]):
        self._stream = stream

    def add(self, frame: np.ndarray) -> None:
        """Append one frame."""
        self._stream.send(np.ascontiguousarray(frame))


@contextmanager
def open_video(path: Path, width: int, height: int, fps: float) -> Iterator[VideoWriter]:
    """Write an mp4; the file appears when it is complete."""
    ffmpeg = require_ffmpeg()
    with atomic_write(path) as temporary:
        stream = ffmpeg.write_frames(
            str(temporary),
            (width, height),
            fps=fps,
            codec="libx264",
            pix_fmt_out="yuv420p",
            macro_block_size=2,
            output_params=["-crf", "26", "-preset", "medium", "-movflags", "+faststart"],
        )
        try:
            stream.send(None)
            yield VideoWriter(stream)
        finally:
            stream.close()


def mp4_to_gif(source: Path, target: Path, width: int = 400, fps: int = 12) -> None:
    """Convert an mp4 to a gif with its own palette."""
    filters = (
        f"fps={fps},scale={width}:-1:flags=lanczos,split[a][b];"
        "[a]palettegen=max_colors=128:stats_mode=diff:reserve_transparent=0[p];[b][p]paletteuse=dither=none"
    )
    # Every frame is opaque and repeats the palette: with a palette of the first frame beside a global one, readers such
    # as imageio draw all other frames in wrong colors.
    encoding = ["-global_palette", "0", "-gifflags", "-transdiff"]
    with atomic_write(target) as temporary:
        command = [require_ffmpeg().get_ffmpeg_exe(), "-v", "error", "-y", "-i", str(source), "-vf", filters, *encoding]
        result = subprocess.run([*command, str(temporary)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"ffmpeg could not convert {source.name} to a gif: {result.stderr.strip()}")
