"""`st-rl doctor` lists missing packages and their install commands."""

import subprocess

import pytest

from st_rl.cli import main
from st_rl.cli.commands import doctor


def test_complete_installation_is_reported(capsys):
    assert main(["doctor", "--no-rendering"]) == 0
    text = capsys.readouterr().out
    for name in ("torch", "sim", "threads", "gpu"):
        assert name in text


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("imageio-ffmpeg", 'pip install "st_rl[video]"'),
        ("onnxruntime", 'pip install "st_rl[export]"'),
        ("gymnasium", 'pip install "st_rl[gym]"'),
    ],
)
def test_missing_extra_is_reported_with_its_pip_command(monkeypatch, capsys, package, command):
    real = doctor.package_version
    monkeypatch.setattr(doctor, "package_version", lambda name: None if name == package else real(name))
    assert main(["doctor", "--no-rendering"]) == 0
    text = capsys.readouterr().out
    assert command in text
    assert package in text


@pytest.mark.parametrize("has_gpu", [True, False])
def test_warp_is_checked_only_with_a_gpu(monkeypatch, capsys, has_gpu):
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a card")
    real = doctor.package_version
    monkeypatch.setattr(doctor, "package_version", lambda name: None if name == "mujoco-warp" else real(name))
    assert main(["doctor", "--no-rendering"]) == 0
    assert ('pip install "st_rl[warp]"' in capsys.readouterr().out) == has_gpu


def test_exit_code_is_1_without_mujoco(monkeypatch, capsys):
    real = doctor.package_version
    monkeypatch.setattr(doctor, "package_version", lambda name: None if name == "mujoco" else real(name))
    assert main(["doctor", "--no-rendering"]) == 1
    assert 'pip install "st_rl[sim]"' in capsys.readouterr().out


def test_failed_rendering_names_the_packages():
    def fail(command, **keywords):
        return subprocess.CompletedProcess(
            command, 1, "", "Traceback ...\nst_rl.sim.evaluation.rendering.RenderingError: no library: install x"
        )

    finding = doctor.check_rendering(fail)
    assert finding.state == "missing"
    assert finding.detail == "no library"
    assert "libosmesa6" in finding.fix


def test_rendering_check_times_out():
    def hang(command, **keywords):
        raise subprocess.TimeoutExpired(command, keywords["timeout"])

    assert doctor.check_rendering(hang).state == "missing"


def test_rendering_check_draws_a_picture():
    pytest.importorskip("mujoco")
    finding = doctor.check_rendering()
    if "neither EGL nor OSMesa" in finding.detail:
        pytest.skip(finding.detail)
    assert finding.state == "ok", finding.detail
