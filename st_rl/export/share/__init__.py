"""A static page on which a policy walks in the browser: MuJoCo and onnxruntime as WebAssembly, no server, no Python."""

from st_rl.export.share.assets import ShareError, find_packages
from st_rl.export.share.page import write_page

__all__ = ["ShareError", "find_packages", "write_page"]
