"""The correct spelling of `data_compresser`: the same module under another name."""

import sys

from st_rl.utils import data_compresser
from st_rl.utils.data_compresser import (
    compress_normalized_image,
    decompress_normalized_image,
    get_compressor,
    get_decompressor,
)

__all__ = ["compress_normalized_image", "decompress_normalized_image", "get_compressor", "get_decompressor"]

# One module object, so that a kind defined under either name is found under both.
sys.modules[__name__] = data_compresser
