"""Films in TensorBoard files."""

from pathlib import Path

from st_rl.loggers.summary_writer import SummaryWriter


def add_gif(writer: SummaryWriter, tag: str, gif: Path, step: int) -> None:
    """Write a gif as an image, which TensorBoard plays; `add_video` would need moviepy and all frames in memory."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

    content = gif.read_bytes()
    # The size of the first frame, little endian, follows the signature.
    width, height = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
    writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)
