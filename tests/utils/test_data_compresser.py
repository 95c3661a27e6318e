import numpy as np
import pytest
import torch

import st_rl.utils.data_compressor as correct_spelling
from st_rl.utils import data_compresser
from st_rl.utils.data_compresser import compress_normalized_image, decompress_normalized_image

VALUES = [-0.5, 0.0, 0.001, 0.5, 0.999, 1.0, 7.0, float("inf"), float("-inf"), float("nan")]
BYTES = [0, 0, 0, 127, 254, 255, 255, 255, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_clipped_scaled_and_truncated(dtype):
    for data in (np.array(VALUES, dtype=dtype), torch.tensor(VALUES, dtype=getattr(torch, dtype))):
        stored = compress_normalized_image(data)
        assert str(stored.dtype).endswith("uint8")
        assert stored.tolist() == BYTES
        restored = decompress_normalized_image(stored)
        assert str(restored.dtype).endswith("float32")
        np.testing.assert_array_equal(np.asarray(restored), np.array(BYTES, dtype=np.float32) / np.float32(255))


def test_both_spellings_are_one_module_and_new_kinds_are_found(monkeypatch):
    assert correct_spelling is data_compresser
    monkeypatch.setattr(data_compresser, "compress_half", lambda data: data / 2, raising=False)
    assert correct_spelling.get_compressor("half")(4.0) == 2.0
    with pytest.raises(ValueError, match=r"'half'; known: normalized_image"):
        data_compresser.get_decompressor("half")
