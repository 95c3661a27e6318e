"""`st-rl export` reads the run folder alone, and its file acts as the policy of the training."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import st_rl
from st_rl.cli import main
from st_rl.cli.commands.export import _sample_observations
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.env.policy_metadata import describe_policy_io
from st_rl.modules.policy.load import load_policy
from st_rl.utils.files import load_checkpoint, save_checkpoint, to_json_values

pytest.importorskip("mujoco")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
POLICIES = {
    "ActorCritic": [],
    "ActorCriticRecurrent": ["--policy.rnn-type", "gru", "--policy.rnn-hidden-size", "8"],
}


@pytest.fixture(scope="module", params=POLICIES)
def run(tmp_path_factory, request):
    """A short training of a policy with an observation normalizer."""
    folder = tmp_path_factory.mktemp("work") / "run"
    arguments = ["train", "balance", "--iterations", "2", "--num-envs", "16", "--runner.num-steps-per-env", "8"]
    policy = ["--policy.class-name", request.param, *POLICIES[request.param], "--runner.empirical-normalization"]
    assert main([*arguments, *policy, "--runner.engine", "eager", "--log-dir", str(folder)]) == 0
    return folder


def without_metadata(run, folder):
    """Copy a run without what it says about its policy."""
    folder.mkdir()
    for name in ("run.json", "config.json", "model_2.pt"):
        (folder / name).write_bytes((run / name).read_bytes())
    settings = json.loads((folder / "run.json").read_text())
    del settings["policy_metadata"]
    (folder / "run.json").write_text(json.dumps(settings))
    return folder


def test_export_calls_at_most_20_files_of_the_package(run):
    package = str(Path(st_rl.__file__).parent)
    files = set()

    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and code.co_name != "<module>":
            files.add(Path(code.co_filename).relative_to(package).as_posix())

    sys.setprofile(watch)
    try:
        assert main(["export", str(run)]) == 0
    finally:
        sys.setprofile(None)
    assert len(files) <= 20, "\n".join(sorted(files))
    assert not [name for name in files if name.startswith("sim/")]


def test_exported_file_acts_as_the_runner_on_raw_observations(run):
    assert main(["export", str(run), "--checkpoint", "last"]) == 0
    loaded = LoadedRun(RunFolder(run))
    env = loaded.make_env(4, "cpu", 7)
    runner = loaded.make_runner(env, "cpu")
    runner.load(run / "model_2.pt", load_optimizer=False)
    policy = runner.get_inference_policy()
    session = runtime.InferenceSession(str(run / "policy.onnx"), providers=["CPUExecutionProvider"])
    states = {entry.name: np.zeros((1, 4, 8), np.float32) for entry in session.get_inputs()[1:]}
    obs = env.get_observations()[0]
    with torch.inference_mode():
        for _ in range(5):
            actions, *following = session.run(None, {"obs": obs.numpy(), **states})
            expected = policy(obs)
            np.testing.assert_allclose(actions, expected.numpy(), atol=1e-5)
            states = dict(zip(states, following))
            obs = env.step(expected)[0]


def test_metadata_of_the_training_is_that_of_an_evaluation(run):
    settings = json.loads((run / "run.json").read_text())
    env = LoadedRun(RunFolder(run)).make_eval_env(4, 10.0, 1)
    assert settings["policy_metadata"] == json.loads(json.dumps(to_json_values(describe_policy_io(env))))
    assert main(["export", str(run), "--checkpoint", "last"]) == 0
    content = json.loads((run / "policy.json").read_text())
    assert content["metadata"].items() >= settings["policy_metadata"].items()
    assert content["observations_compared"] == 256 + 800


def test_checkpoint_without_observations_is_verified_on_random_ones(run, tmp_path):
    checkpoint = load_checkpoint(run / "model_2.pt")
    checkpoint["runner_state_dict"]["observations"] = None
    file = tmp_path / "model.pt"
    save_checkpoint(checkpoint, file)
    arguments = ["export", str(run), "--checkpoint", str(file), "--output", str(tmp_path / "policy.onnx")]
    assert main(arguments) == 0
    assert json.loads((tmp_path / "policy.json").read_text())["observations_compared"] == 256 + 800


def test_recorded_observations_equal_environment(run):
    policy = load_policy(run, 2)
    obs = _sample_observations(policy)
    stored = load_checkpoint(run / "model_2.pt")["runner_state_dict"]["observations"][0]
    torch.testing.assert_close(policy.obs_normalizer.eval()(obs[: len(stored)]), stored, rtol=1e-3, atol=1e-3)


def test_run_without_metadata_is_written_again_by_resume(run, tmp_path, capsys):
    old = without_metadata(run, tmp_path / "old")
    assert main(["export", str(old)]) == 1
    assert "resume" in capsys.readouterr().err
    assert main(["resume", str(old), "--iterations", "1"]) == 0
    metadata = [json.loads((folder / "run.json").read_text())["policy_metadata"] for folder in (run, old)]
    assert metadata[0] == metadata[1]
    assert main(["export", str(old)]) == 0
