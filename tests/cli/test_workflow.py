"""From `train` to `report` on the cart-pole, as a user would do it."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from st_rl.cli import main

pytest.importorskip("mujoco")
SMALL = [
    "--num-envs",
    "16",
    "--runner.num-steps-per-env",
    "8",
    "--runner.save-interval",
    "2",
    "--runner.engine",
    "eager",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished short training."""
    folder = tmp_path_factory.mktemp("work") / "run"
    arguments = ["train", "balance", "--iterations", "4", "--seed", "5", *SMALL, "--log-dir", str(folder)]
    assert main([*arguments, "--env.max-angle", "0.5", "--algorithm.learning-rate", "2e-3"]) == 0
    return folder


def last_line_of_error(capsys) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_run_folder_holds_settings_config_and_log(run):
    names = {path.name for path in run.iterdir()}
    assert {"run.json", "config.json", "progress.csv", "model_2.pt", "model_4.pt", "best.pt", "git"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    settings = json.loads((run / "run.json").read_text())
    assert settings["task"] == "balance"
    assert settings["task_config"]["max_angle"] == 0.5
    assert (settings["seed"], settings["num_envs"], settings["iterations"]) == (5, 16, 4)
    assert settings["command_line"].startswith("st-rl train balance --iterations 4 --seed 5")
    assert {"python", "torch", "mujoco", "st_rl"} <= set(settings["versions"])
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"]["learning_rate"] == 2e-3
    assert config["runner"]["num_steps_per_env"] == 8
    rows = list(csv.DictReader((run / "progress.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3]
    assert [bool(row["Evaluation/score"]) for row in rows] == [False, True, False, True]
    assert [settings["ended"][key] for key in ("state", "iterations", "steps")] == ["finished", 4, 4 * 8 * 16]


def weights(folder, name="model_4.pt"):
    return torch.load(folder / name, weights_only=True)["model_state_dict"]


def test_runs_are_determined_by_seed(run, tmp_path):
    arguments = ["train", "balance", "--iterations", "4", *SMALL]
    settings = ["--env.max-angle", "0.5", "--algorithm.learning-rate", "2e-3"]
    assert main([*arguments, "--seed", "5", *settings, "--log-dir", str(tmp_path / "same")]) == 0
    assert main([*arguments, "--seed", "6", *settings, "--log-dir", str(tmp_path / "other")]) == 0
    same, other, first = weights(tmp_path / "same"), weights(tmp_path / "other"), weights(run)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_seed_determines_the_initial_states(tmp_path):
    from st_rl.cli.commands.train import prepare_training, read_training
    from st_rl.cli.support.task_source import find_source

    def initial_observation(seed, name):
        arguments = ["--seed", str(seed), *SMALL, "--log-dir", str(tmp_path / name)]
        source = find_source("balance")
        runner, _ = prepare_training(source, *read_training(source, arguments), "")
        return runner.env.get_observations()[0]

    first = initial_observation(5, "first")
    assert torch.equal(first, initial_observation(5, "same"))
    assert not torch.equal(first, initial_observation(6, "other"))


def test_resumed_run_equals_uninterrupted_run(run, tmp_path, capsys):
    arguments = ["--seed", "5", *SMALL, "--env.max-angle", "0.5", "--algorithm.learning-rate", "2e-3"]
    folder = tmp_path / "run"
    assert main(["train", "balance", "--iterations", "2", *arguments, "--log-dir", str(folder)]) == 0
    assert main(["resume", str(folder), "--iterations", "2"]) == 0
    assert "after iteration 2" in capsys.readouterr().out
    whole, resumed = weights(run), weights(folder)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    settings = json.loads((folder / "run.json").read_text())
    assert settings["iterations"] == 4
    assert settings["resumed"][0]["from_iteration"] == 2
    assert main(["resume", str(folder)]) == 1
    assert "add more with --iterations" in last_line_of_error(capsys)
    # From an older checkpoint, fewer iterations than remain do not change the total of the run.
    assert main(["resume", str(folder), "--checkpoint", "2", "--iterations", "1"]) == 0
    assert json.loads((folder / "run.json").read_text())["iterations"] == 4


def test_eval_runs_in_training_and_in_fine_physics(run, tmp_path, monkeypatch):
    from st_rl.cli.support.run_folders.loaded_run import LoadedRun

    physics, make_eval_env = [], LoadedRun.make_eval_env

    def make_recorded(self, *args):
        env = make_eval_env(self, *args)
        physics.append((env.cfg.physics.timestep, env.cfg.physics.iterations))
        return env

    monkeypatch.setattr(LoadedRun, "make_eval_env", make_recorded)
    assert main(["eval", str(run), "--num-envs", "2", "--output", str(tmp_path / "eval.json")]) == 0
    training, fine = physics
    assert fine == (0.005, 50) != training


def test_eval_writes_a_table_and_json(run, capsys):
    assert main(["eval", str(run), "--num-envs", "8"]) == 0
    assert "training physics" in capsys.readouterr().out
    result = json.loads((run / "eval.json").read_text())
    assert list(result["columns"]) == ["training physics", "fine physics"]
    for column in result["columns"].values():
        assert column["num_envs"] == 8
        assert 0 < column["length_mean"] <= 250
    assert main(["eval", str(run), "--num-envs", "8"]) == 0
    assert json.loads((run / "eval.json").read_text())["columns"] == result["columns"], "not deterministic"


def test_run_of_an_unregistered_task_names_its_script(run, tmp_path, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    settings = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**settings, "task": "my-walk"}))
    assert main(["eval", str(copied)]) == 1
    error = capsys.readouterr().err
    assert "run.json names the task 'my-walk', which st-rl does not know: use the script that registers it" in error


def test_missing_metrics_are_null_in_json_and_a_dash_in_the_table():
    from st_rl.cli.commands.eval import replace_nan
    from st_rl.cli.support.metrics import format_metric

    assert replace_nan({"a": [float("nan"), 1.0], "b": (float("inf"), 2)}) == {"a": [None, 1.0], "b": [None, 2]}
    assert format_metric("lin_vel_x_error", float("nan"), 64) == "-"
    assert format_metric("stance_fraction", [float("nan"), 0.5], 64) == "- 0.50"
    assert format_metric("falls", 2, 64) == "2 of 64"
    assert format_metric("push_survival", 0.984, 64) == "98%"


def test_export_writes_a_policy_that_onnxruntime_runs(run, capsys):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert main(["export", str(run), "--checkpoint", "last"]) == 0
    assert "opset 18" in capsys.readouterr().out
    session = runtime.InferenceSession(str(run / "policy.onnx"), providers=["CPUExecutionProvider"])
    facts = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert facts["joint_names"] == ["slider"]
    assert facts["iteration"] == 4
    assert list(facts["obs_segments"]) == ["cart_position", "cart_velocity", "pole_angle", "pole_velocity"]
    assert facts["action_scale"] == 6.0
    assert json.loads((run / "policy.json").read_text())["largest_difference"] <= 1e-5


def test_observation_can_be_computed_from_the_metadata():
    import torch

    from st_rl.env.policy_metadata import describe_policy_io
    from st_rl.sim.tasks import make_task

    settings = {
        "gait.period_s": 0.7,
        "noise.level": 0.0,
        "commands.lin_vel_x": (0.5, 0.5),
        "commands.standing_fraction": 0.5,
    }
    env = make_task("quadruped-walk", num_envs=8, seed=2, **settings)
    facts = describe_policy_io(env)
    scales, clock, default = (
        facts["obs_scales"],
        facts["clock"],
        torch.tensor(facts["default_joint_pos"], dtype=torch.float32),
    )
    assert list(facts["stiffness"]) == env.robot.model.actuator_gainprm[:, 0].tolist() == [35.0] * 12
    phase, action = env.phase.clone(), torch.full((8, 12), 0.1)  # a real controller may start in any state
    for _ in range(5):
        obs, *_ = env.step(action)
        phase = phase + facts["control_period_s"] / clock["period_s"]
        walks = env.commands.norm(dim=1, keepdim=True) > clock["moving_threshold"]
        angle = 2 * torch.pi * phase[:, None]
        parts = {
            "base_lin_vel": env.base_lin_vel * scales["lin_vel"],
            "base_ang_vel": env.base_ang_vel * scales["ang_vel"],
            "projected_gravity": env.projected_gravity,
            "joint_pos": (env.joint_pos - default) * scales["joint_pos"],
            "joint_vel": env.joint_vel * scales["joint_vel"],
            "commands": env.commands * scales["commands"],
            "actions": action,
            "clock": torch.cat([angle.sin(), angle.cos()], dim=1) * walks,
        }
        made = torch.cat([parts[name] for name in facts["obs_segments"]], dim=1)
        made = made.clamp(-facts["clip_observations"], facts["clip_observations"])
        torch.testing.assert_close(made, obs, rtol=1e-4, atol=1e-4)
    assert 0 < walks.sum() < 8


def needs_rendering():
    pytest.importorskip("imageio_ffmpeg")
    from st_rl.sim.evaluation.rendering import RenderingError, choose_gl

    try:
        choose_gl()
    except RenderingError as error:
        pytest.skip(str(error))


def test_play_stopped_by_sigterm_leaves_no_temporary_file(run):
    needs_rendering()
    command = [sys.executable, "-m", "st_rl", "play", str(run), "--no-viewer", "--seconds", "600"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not list(run.glob(".tmp-*play.mp4")):
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) == 143
    assert not list(run.rglob(".*"))


def test_play_writes_video_gif_and_traces(run, capsys):
    needs_rendering()
    arguments = ["play", str(run), "--no-viewer", "--seconds", "0.4", "--width", "97", "--height", "64"]
    assert main(arguments) == 0
    assert (run / "play.mp4").stat().st_size > 500
    assert (run / "play.gif").read_bytes().startswith(b"GIF89a")
    traces = json.loads((run / "play.json").read_text())
    assert traces["joints"] == ["slider"]
    assert len(traces["position"][0]) == 20
    capsys.readouterr()


def test_report_is_one_page_about_the_run(run, capsys):
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    for words in ("balance", "st-rl train balance", "Mean episode return", "max_angle"):
        assert words in page
    capsys.readouterr()


def test_latest_is_newest_run_of_working_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "balance", "--iterations", "1", *SMALL]) == 0
    assert main(["report", "latest"]) == 0
    assert len(list((tmp_path / "runs" / "balance").glob("*/report.html"))) == 1
    assert "st-rl eval" in capsys.readouterr().out


def test_minutes_stop_a_training_and_save(tmp_path, capsys):
    arguments = ["train", "balance", "--iterations", "100000", "--minutes", "0.01", *SMALL]
    assert main([*arguments, "--runner.save-interval", "100000", "--log-dir", str(tmp_path / "run")]) == 0
    assert "Next:" in capsys.readouterr().out
    assert len(list((tmp_path / "run").glob("model_*.pt"))) == 1


def test_ctrl_c_finishes_the_iteration_saves_and_prints_resume(tmp_path, capsys):
    folder = tmp_path / "run"
    # A shell lets commands in the background ignore Ctrl-C.
    usual = signal.getsignal(signal.SIGINT)

    def press():
        while not (folder / "progress.csv").is_file():
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    arguments = ["train", "balance", "--iterations", "100000", *SMALL, "--runner.save-interval", "100000"]
    assert main([*arguments, "--log-dir", str(folder)]) == 130
    captured = capsys.readouterr()
    assert f"st-rl resume {folder}" in captured.out
    assert "Ctrl-C again stops immediately" in captured.err
    assert len(list(folder.glob("model_*.pt"))) == 1
    # The default handler of Ctrl-C is restored.
    assert signal.getsignal(signal.SIGINT) is usual
    assert main(["resume", str(folder), "--iterations", "1"]) == 0


def test_sigterm_saves_and_exits_with_143(tmp_path):
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    arguments = ["train", "balance", "--iterations", "100000", *SMALL, "--runner.save-interval", "100000"]
    command = [sys.executable, "-m", "st_rl", *arguments, "--log-dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 100
    while not (folder / "progress.csv").is_file() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert f"python -m st_rl resume {folder}" in out
    assert "Traceback" not in err
    assert len(list(folder.glob("model_*.pt"))) == 1


def test_closing_the_terminal_saves_and_exits_with_129(tmp_path):
    pty = pytest.importorskip("pty")
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    arguments = ["train", "balance", "--iterations", "100000", *SMALL, "--runner.save-interval", "100000"]
    command = [sys.executable, "-m", "st_rl", *arguments, "--log-dir", str(folder)]
    process, terminal = pty.fork()
    if process == 0:
        os.execve(sys.executable, command, environment)
    deadline = time.monotonic() + 100
    while not (folder / "progress.csv").is_file() and time.monotonic() < deadline:
        os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert len(list(folder.glob("model_*.pt"))) == 1


class TestNewcomersErrors:
    """Each error is one line without a stack trace, and the exit code is not 0."""

    @pytest.fixture(autouse=True)
    def no_trace(self, capsys):
        self.capsys = capsys

    def error(self, arguments, code=1) -> str:
        assert main(arguments) == code
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        lines = [line for line in captured.err.splitlines() if not line.startswith("[st_rl]")]
        assert len(lines) == 1, captured.err
        return lines[0]

    @pytest.mark.parametrize("command", ["play", "eval", "export", "resume"])
    def test_run_folder_without_checkpoints(self, tmp_path, command):
        (tmp_path / "run.json").write_text('{"task": "balance"}')
        assert "has no checkpoints (model_*.pt)" in self.error([command, str(tmp_path)])

    def test_unwritable_folder(self, tmp_path):
        file = tmp_path / "file"
        file.write_text("")
        line = self.error(["train", "balance", "--iterations", "1", *SMALL, "--log-dir", str(file / "run")])
        assert "cannot create the folder" in line
        assert "--log-dir" in line

    @pytest.mark.parametrize("command", ["eval", "export", "report"])
    def test_rejects_unwritable_output_before_training(self, run, tmp_path, command):
        file = tmp_path / "file"
        file.write_text("")
        line = self.error([command, str(run), "--output", str(file / "out")])
        assert "cannot create the folder" in line
        assert "--output" in line
        assert "is a folder: name a file in it with --output" in self.error(
            [command, str(run), "--output", str(tmp_path)]
        )

    def test_invalid_numbers(self, run):
        assert "--lin-vel-x 1 0.3: give the smaller number first" in self.error(
            ["eval", str(run), "--lin-vel-x", "1.0", "0.3"], code=2
        )
        assert "--seconds must be above 0, got 0" in self.error(["play", str(run), "--seconds", "0"], code=2)

    def test_read_only_run(self, run, monkeypatch):
        real = os.access
        monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK and real(path, mode))
        assert "no permission to write" in self.error(["eval", str(run)])

    def test_folder_that_already_has_a_run(self, run):
        line = self.error(["train", "balance", "--iterations", "1", *SMALL, "--log-dir", str(run)], code=2)
        assert f"st-rl resume {run}" in line

    def test_mjcf_without_free_joint(self, tmp_path):
        robot = tmp_path / "arm.xml"
        robot.write_text(
            '<mujoco><worldbody><body><joint name="a"/><geom size=".1"/></body></worldbody>'
            '<actuator><position joint="a" kp="1"/></actuator></mujoco>'
        )
        folder = tmp_path / "run"
        line = self.error(["train", "quadruped-walk", "--env.robot", str(robot), "--log-dir", str(folder)])
        assert "no free joint" in line
        assert not folder.exists(), "a training that cannot start leaves no folder"

    def test_missing_robot_file(self):
        assert "no robot file 'nothing.xml'" in self.error(["train", "balance", "--env.robot", "nothing.xml"])

    def test_no_rendering_library(self, run, monkeypatch):
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
        assert "apt-get install -y libegl1 libosmesa6" in self.error(["play", str(run)])

    def test_no_video_package(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
        assert 'pip install "st_rl[video]"' in self.error(["play", str(run), "--no-viewer"])

    def test_no_onnx_package(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        assert 'pip install "st_rl[export]"' in self.error(["export", str(run)])

    def test_damaged_checkpoint(self, run, tmp_path):
        damaged = tmp_path / "damaged.pt"
        damaged.write_bytes(b"not a checkpoint")
        assert "damaged.pt" in self.error(["eval", str(run), "--checkpoint", str(damaged)])

    def test_unavailable_device(self):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        assert "torch finds no GPU" in self.error(["train", "balance", "--device", "cuda:0"])
        assert "unknown device" in self.error(["train", "balance", "--device", "toaster"])

    def test_no_iterations(self):
        assert "at least 1" in self.error(["train", "balance", "--iterations", "0"], code=2)

    def test_unknown_class(self, tmp_path):
        line = self.error(["train", "balance", "--policy.class-name", "ActorCrtic", "--log-dir", str(tmp_path / "r")])
        assert "did you mean 'ActorCritic'?" in line


def test_gymnasium_environment_as_task(tmp_path, capsys):
    pytest.importorskip("gymnasium")
    folder = tmp_path / "run"
    arguments = ["train", "gym:Pendulum-v1", "--iterations", "2", "--num-envs", "2"]
    arguments += ["--runner.num-steps-per-env", "8", "--algorithm.num-mini-batches", "4"]
    assert main([*arguments, "--log-dir", str(folder)]) == 0
    assert main(["eval", str(folder), "--num-envs", "2", "--task", "gym:Pendulum-v1"]) == 0
    result = json.loads((folder / "eval.json").read_text())
    assert result["columns"]["environment"]["length_mean"] == 200
    assert main(["report", str(folder)]) == 0
    assert "gym:Pendulum-v1" in (folder / "report.html").read_text()
    capsys.readouterr()


def test_quadruped_from_train_to_report(tmp_path, capsys):
    folder = tmp_path / "run"
    arguments = ["train", "quadruped-walk", "--iterations", "1", "--num-envs", "8", "--runner.num-steps-per-env", "8"]
    settings = ["--runner.engine", "eager", "--env.commands.lin-vel-x", "0.3", "0.8", "--env.rewards.gait", "0.25"]
    assert main([*arguments, *settings, "--log-dir", str(folder)]) == 0
    kept = json.loads((folder / "run.json").read_text())["task_config"]
    assert kept["commands"]["lin_vel_x"] == [0.3, 0.8]
    assert kept["rewards"]["gait"] == 0.25

    assert main(["eval", str(folder), "--num-envs", "8", "--seconds", "1.2", "--lin-vel-y", "0", "0"]) == 0
    result = json.loads((folder / "eval.json").read_text())
    grid = result["grid"]["fine physics"]["command"]
    assert min(c[0] for c in grid) == pytest.approx(0.3)
    assert max(c[0] for c in grid) == pytest.approx(0.8)
    assert {c[1] for c in grid} == {0.0}
    for column in result["columns"].values():
        assert {"falls", "lin_vel_x_error", "foot_clearance", "stance_fraction"} <= set(column)
        assert "push_survival" not in column, "the walk is over before the first push"
    capsys.readouterr()

    needs_rendering()
    small = ["--seconds", "0.2", "--width", "96", "--height", "64"]
    assert main(["play", str(folder), "--no-viewer", "--no-gif", *small]) == 0
    assert not (folder / "play.gif").exists()
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    for part in ('id="tracking"', 'id="gait"', 'id="joints"', "data:video/mp4;base64,", "FR_hip"):
        assert part in page
