"""`st-rl import rsl_rl` makes a run of a checkpoint of rsl_rl that acts as the checkpoint did."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from st_rl.cli import main
from st_rl.modules import load_policy
from st_rl.utils.files import load_checkpoint
from tests.runners.setup import rsl_rl_peer

PEER = Path(rsl_rl_peer.__file__).parent / "rsl_rl_5_5_1"


def write_peer(case, folder, with_config=True):
    """Write a checkpoint and its configuration as Isaac Lab and mjlab leave them; returns file and peer's arrays."""
    arrays = rsl_rl_peer.unpack(PEER / f"{case}.npz")
    folder.mkdir(parents=True)
    torch.save(rsl_rl_peer.read_checkpoint(arrays, "before"), folder / "model_7.pt")
    if with_config:
        config = json.loads(str(arrays["config"]))
        config["obs_groups"] = {name: tuple(groups) for name, groups in config["obs_groups"].items()}
        (folder / "params").mkdir()
        (folder / "params" / "agent.yaml").write_text(yaml.dump(config))
    return folder / "model_7.pt", arrays


def first_actions(run, arrays):
    """Actions of the imported policy for the first observation of the peer, and those of the peer."""
    policy = load_policy(run)
    groups = {name[4:]: torch.tensor(value[0]) for name, value in arrays.items() if name.startswith("obs/")}
    return policy(groups).numpy(), arrays["mean/0"]


@pytest.mark.parametrize("case", ["mlp", "mlp_log", "hetero_log", "lstm", "gru", "cnn", "distillation"])
def test_imported_policy_acts_as_the_checkpoint(case, tmp_path, capsys):
    checkpoint, arrays = write_peer(case, tmp_path / "theirs")
    run = tmp_path / "run"
    images = ["--images", "image=1,6,6"] if case == "cnn" else []
    assert main(["import", "rsl_rl", str(checkpoint), str(run), *images]) == 0
    assert "iteration 7" in capsys.readouterr().out
    np.testing.assert_allclose(*first_actions(run, arrays), atol=1e-6)


def test_weights_alone_tell_sizes_and_kind(tmp_path, capsys):
    checkpoint, arrays = write_peer("gru", tmp_path / "theirs", with_config=False)
    run = tmp_path / "run"
    assert main(["import", "rsl_rl", str(checkpoint), str(run)]) == 0
    assert "sizes of the weights, activation elu" in capsys.readouterr().out
    policy = load_policy(run)
    assert (policy.actor_critic.memory_a.rnn.num_layers, policy.actor_critic.memory_a.rnn.hidden_size) == (2, 5)
    obs = torch.cat([torch.tensor(arrays["obs/policy"][0]), torch.tensor(arrays["obs/extra"][0])], dim=1)
    np.testing.assert_allclose(policy(obs).numpy(), arrays["mean/0"], atol=1e-6)


@pytest.mark.parametrize("version", [2, 3])
def test_checkpoints_of_older_versions(version, tmp_path):
    """rsl_rl 2 keeps normalizers beside the model, rsl_rl 3 inside of it; the layers have the same names."""
    torch.manual_seed(0)
    actor = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ELU(), torch.nn.Linear(6, 2))
    critic = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ELU(), torch.nn.Linear(4, 1))
    model = {f"actor.{name}": value for name, value in actor.state_dict().items()}
    model |= {f"critic.{name}": value for name, value in critic.state_dict().items()} | {"std": torch.ones(2)}
    mean, std = torch.rand(1, 5), 1 + torch.rand(1, 5)
    statistics = {"_mean": mean, "_var": std**2, "_std": std, "count": torch.tensor(9)}
    checkpoint = {"model_state_dict": model, "iter": 3, "infos": None}
    if version == 2:
        checkpoint["obs_norm_state_dict"] = statistics
    else:
        model |= {f"actor_obs_normalizer.{name}": value for name, value in statistics.items()}
    torch.save(checkpoint, tmp_path / "model_3.pt")
    assert main(["import", "rsl_rl", str(tmp_path / "model_3.pt"), str(tmp_path / "run")]) == 0
    obs = torch.randn(3, 5)
    expected = actor((obs - mean) / (std + 0.01)).detach()
    torch.testing.assert_close(load_policy(tmp_path / "run")(obs), expected, rtol=0, atol=1e-6)


def test_imported_run_exports_without_its_environment(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    checkpoint, _ = write_peer("mlp", tmp_path / "theirs")
    run = tmp_path / "run"
    assert main(["import", "rsl_rl", str(checkpoint), str(run)]) == 0
    assert main(["export", str(run)]) == 0
    assert (run / "policy.onnx").is_file()
    assert main(["eval", str(run)]) == 1
    assert "names no task" in capsys.readouterr().err


def test_imported_run_plays_resumes_and_teaches_its_task(tmp_path):
    pytest.importorskip("gymnasium")
    torch.manual_seed(0)
    layers = {"actor": [(3, 6), (6, 1)], "critic": [(3, 4), (4, 1)]}
    state = {
        f"{part}_state_dict": {
            f"mlp.{2 * index}.{kind}": torch.randn(*((o, i) if kind == "weight" else (o,)))
            for index, (i, o) in enumerate(sizes)
            for kind in ("weight", "bias")
        }
        for part, sizes in layers.items()
    }
    state["actor_state_dict"] = {"distribution.std_param": torch.ones(1), **state["actor_state_dict"]}
    torch.save({**state, "iter": 4, "infos": None}, tmp_path / "model_4.pt")
    run, task = tmp_path / "run", "gym:Pendulum-v1"
    assert main(["import", "rsl_rl", str(tmp_path / "model_4.pt"), str(run), "--task", task]) == 0
    assert main(["eval", str(run), "--num-envs", "2", "--task", task]) == 0
    assert main(["resume", str(run), "--iterations", "1", "--task", task]) == 0
    after = load_checkpoint(run / "model_5.pt")["model_state_dict"]
    assert not torch.equal(after["actor.0.weight"], state["actor_state_dict"]["mlp.0.weight"])
    student = [
        "distill",
        str(run),
        task,
        "--iterations",
        "1",
        "--num-envs",
        "2",
        "--log-dir",
        str(tmp_path / "student"),
    ]
    assert main([*student, "--runner.num-steps-per-env", "4", "--algorithm.num-mini-batches", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rsl_rl"], 2, "CHECKPOINT or RUN is missing"),
        (["rsl_lr", "{file}", "{run}"], 2, "unknown library 'rsl_lr'"),
        (["rsl_rl", "{run}/none.pt", "{run}"], 2, "there is no checkpoint"),
        (["rsl_rl", "{cnn}", "{run}"], 2, "has a CNN.*--config"),
        (["rsl_rl", "{file}", "{run}", "--config", "{run}/none.yaml"], 2, "there is no configuration"),
        (["rsl_rl", "{file}", "{run}", "--config", "{other}"], 1, "does not fit ActorCritic"),
        (["rsl_rl", "{file}", "{run}", "--config", "{unsafe}"], 1, "could not determine a constructor"),
        (["rsl_rl", "{file}", "{run}", "--images", "camera=3"], 2, "--images takes NAME=CHANNELS,HEIGHT,WIDTH"),
    ],
)
def test_error_names_what_is_wrong(arguments, code, message, tmp_path, capsys):
    file, _ = write_peer("mlp", tmp_path / "mlp", with_config=False)
    cnn, _ = write_peer("cnn", tmp_path / "cnn", with_config=False)
    other, unsafe = tmp_path / "other.json", tmp_path / "unsafe.yaml"
    other.write_text(json.dumps({"policy": {"actor_hidden_dims": [3]}, "algorithm": {}, "num_steps_per_env": 4}))
    unsafe.write_text("policy: !!python/object/apply:os.system ['true']\n")
    names = {"file": file, "cnn": cnn, "run": tmp_path / "run", "other": other, "unsafe": unsafe}
    assert main(["import", *(argument.format(**names) for argument in arguments)]) == code
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not (tmp_path / "run" / "run.json").exists()


def test_does_not_write_over_a_run(tmp_path, capsys):
    file, _ = write_peer("mlp", tmp_path / "mlp")
    assert main(["import", "rsl_rl", str(file), str(tmp_path / "mlp")]) == 1
    assert "already holds a run" in capsys.readouterr().err
