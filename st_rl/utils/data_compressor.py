"""The correct spelling of `data_compresser`: the same module under another name."""

import sys

from st_rl.utils import data_compresser
from st_rl.utils.data_compresser import *  # noqa: F403

# One module object, so that a kind defined under either name is found under both.
sys.modules[__name__] = data_compresser
