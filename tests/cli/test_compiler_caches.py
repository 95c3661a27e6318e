"""`ST_RL_CACHE` names one folder for all compiled code."""

import os
import subprocess
import sys

from st_rl.cli import use_cache_folder


def test_without_the_variable_nothing_is_set():
    environment = {"HOME": "/home/me"}
    use_cache_folder(environment)
    assert environment == {"HOME": "/home/me"}


def test_own_places_of_a_compiler_stay(tmp_path):
    environment = {"ST_RL_CACHE": str(tmp_path), "TRITON_CACHE_DIR": "/fast/triton"}
    use_cache_folder(environment)
    assert environment["TRITON_CACHE_DIR"] == "/fast/triton"
    assert environment["WARP_CACHE_PATH"] == str(tmp_path / "warp")


def test_torch_keeps_its_compiled_code_there(tmp_path):
    code = (
        "from st_rl.cli import main; main(['--version']);"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir())"
    )
    environment = {**os.environ, "ST_RL_CACHE": str(tmp_path / "cache")}
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "WARP_CACHE_PATH"):
        environment.pop(name, None)
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split()[-1] == str(tmp_path / "cache" / "inductor")
