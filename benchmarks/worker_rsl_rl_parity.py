"""The rsl_rl side of rsl_rl_parity.py, in its virtual environment: one rollout and one update of each configuration.

    python worker_rsl_rl_parity.py FOLDER float32

writes FOLDER/CASE.npz with the configuration, the weights before and after, and all data of the rollout. `float64`
computes in double precision, so that a difference in rounding can be told from one in the algorithm.
"""

import copy
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from tensordict import TensorDict

NUM_ENVS, NUM_STEPS, NUM_ACTIONS = 4, 6, 3
# The other side sets the same seed before the update: then the mini-batches have the same order of samples.
UPDATE_SEED = 11
SHAPES = {"policy": (5,), "extra": (2,), "critic": (4,), "image": (1, 6, 6), "rnd_state": (3,)}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.8, "std_type": "scalar"}
HETERO = {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.7}
CNN = {"output_channels": [2, 3], "kernel_size": 3, "stride": 1, "activation": "elu", "padding": "zeros"}
MLP = {"class_name": "MLPModel", "hidden_dims": [8, 6], "activation": "elu"}
PPO = {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 1, "learning_rate": 1e-3}
JOINED = {"actor": ["policy", "extra"], "critic": ["policy", "critic"]}


def mirror(env: Any, obs: Any = None, actions: Any = None) -> tuple[Any, Any]:
    """Mirror by a change of sign of everything."""
    mirrored = None if obs is None else TensorDict(
        {name: torch.cat([value, -value]) for name, value in obs.items()}, batch_size=[2 * obs.batch_size[0]]
    )  # fmt: skip
    return mirrored, None if actions is None else torch.cat([actions, -actions])


def ppo(actor=None, critic=None, algorithm=None, obs_groups=None):
    """One configuration: changes of the standard one."""
    return {
        "num_steps_per_env": NUM_STEPS,
        "save_interval": 100,
        "obs_groups": obs_groups or JOINED,
        "actor": {**MLP, "distribution_cfg": GAUSSIAN, **(actor or {})},
        "critic": {**MLP, **(critic or {})},
        "algorithm": {**PPO, **(algorithm or {})},
    }


def rnn(kind, layers=1):
    return {"class_name": "RNNModel", "rnn_type": kind, "rnn_hidden_dim": 5, "rnn_num_layers": layers}


IMAGES = {"actor": ["policy", "image"], "critic": ["critic", "image"]}
NORMALIZED = {"obs_normalization": True}
RND = {"num_outputs": 3, "predictor_hidden_dims": [4], "target_hidden_dims": [4], "weight": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "mlp": ppo(NORMALIZED, NORMALIZED),
    "mlp_defaults": ppo({"hidden_dims": [256, 256, 256]}, {"hidden_dims": [256, 256, 256]}, {"num_learning_epochs": 5}),
    "mlp_log": ppo(
        {"activation": "tanh", "hidden_dims": [-1, 6], "distribution_cfg": {**GAUSSIAN, "std_type": "log"}},
        {"activation": "relu", "obs_normalization": True},
        {"schedule": "fixed", "normalize_advantage_per_mini_batch": True, "use_clipped_value_loss": False},
    ),
    "mlp_fixed_std": ppo({"distribution_cfg": {**GAUSSIAN, "learn_std": False, "std_range": [0.1, 2.0]}}),
    "mlp_adamw": ppo(algorithm={"optimizer": "adamw", "max_grad_norm": 0.1}),
    "hetero": ppo({"distribution_cfg": {**HETERO, "std_type": "scalar"}}),
    "hetero_log": ppo({"distribution_cfg": {**HETERO, "std_type": "log"}, **NORMALIZED}),
    "lstm": ppo(rnn("lstm"), rnn("lstm")),
    "gru": ppo({**rnn("gru", 2), **NORMALIZED}, rnn("gru", 2)),
    "rnn_other_critic": ppo(rnn("lstm"), {**rnn("gru"), "rnn_hidden_dim": 7}),
    "cnn": ppo({"class_name": "CNNModel", "cnn_cfg": CNN, **NORMALIZED}, {"class_name": "CNNModel", "cnn_cfg": CNN},
               obs_groups=IMAGES),
    "cnn_by_group": ppo({"class_name": "CNNModel", "cnn_cfg": {"image": CNN}},
                        obs_groups={"actor": ["policy", "image"], "critic": ["critic"]}),
    "cnn_shared": ppo({"class_name": "CNNModel", "cnn_cfg": CNN}, {"class_name": "CNNModel", "cnn_cfg": CNN},
                      {"share_cnn_encoders": True}, IMAGES),
    "cnn_shared_once": ppo({"class_name": "CNNModel", "cnn_cfg": CNN}, {"class_name": "CNNModel", "cnn_cfg": CNN},
                           {"share_cnn_encoders": True}, IMAGES),
    "rnd": ppo(algorithm={"rnd_cfg": RND}, obs_groups={**JOINED, "rnd_state": ["rnd_state"]}),
    "symmetry": ppo(NORMALIZED, None, {
        "symmetry_cfg": {"data_augmentation_func": "MIRROR", "use_data_augmentation": True, "use_mirror_loss": True,
                         "mirror_loss_coeff": 0.5}}),
    "distillation": {
        "num_steps_per_env": NUM_STEPS,
        "save_interval": 100,
        "obs_groups": {"student": ["policy"], "teacher": ["policy", "critic"]},
        "student": {**MLP, "distribution_cfg": {**GAUSSIAN, "init_std": 0.1}},
        "teacher": {**MLP, **NORMALIZED},
        "algorithm": {"class_name": "Distillation", "num_learning_epochs": 2, "gradient_length": NUM_STEPS},
    },
}  # fmt: skip


def tensor(values: np.ndarray) -> torch.Tensor:
    """Values in torch's default precision."""
    return torch.tensor(values, dtype=torch.get_default_dtype())


class RecordedEnv(VecEnv):
    """Delivers prepared observations, rewards and dones, whatever the actions are."""

    step_dt = 0.02

    def __init__(self, seed: int):
        generator = np.random.default_rng(seed)
        self.tables = {name: generator.normal(size=(NUM_STEPS + 1, NUM_ENVS, *shape)) for name, shape in SHAPES.items()}
        self.rewards = generator.normal(size=(NUM_STEPS, NUM_ENVS))
        self.dones = (generator.random((NUM_STEPS, NUM_ENVS)) < 0.25).astype(float)
        self.time_outs = self.dones * (generator.random((NUM_STEPS, NUM_ENVS)) < 0.5)
        self.num_envs, self.num_actions, self.max_episode_length = NUM_ENVS, NUM_ACTIONS, 100
        self.device, self.cfg, self.position, self.unwrapped = "cpu", {}, 0, self
        self.episode_length_buf = torch.zeros(NUM_ENVS, dtype=torch.long)

    def get_observations(self) -> TensorDict:
        """The current row of every table."""
        rows = {name: tensor(table[self.position]) for name, table in self.tables.items()}
        return TensorDict(rows, batch_size=[NUM_ENVS])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Go to the next row."""
        now, self.position = self.position, self.position + 1
        extras = {"time_outs": tensor(self.time_outs[now])}
        return self.get_observations(), tensor(self.rewards[now]), tensor(self.dones[now]), extras


def flat(prefix: str, saved: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint by path, those of the optimizer too."""
    arrays: dict[str, np.ndarray] = {}
    for key, value in saved.items():
        if isinstance(value, dict):
            arrays |= flat(f"{prefix}{key}/", value)
        elif isinstance(value, torch.Tensor):
            arrays[f"{prefix}{key}"] = value.detach().numpy()
    return arrays


def fill_normalizers(alg: Any, env: RecordedEnv) -> None:
    """Give the normalizers statistics that matter."""
    for model in [value for value in vars(alg).values() if isinstance(value, torch.nn.Module)]:
        if getattr(model, "obs_normalization", False):
            rows = {name: tensor(2.0 * table.reshape(-1, *table.shape[2:]) + 0.3) for name, table in env.tables.items()}
            model.train()
            model.update_normalization(TensorDict(rows, batch_size=[(NUM_STEPS + 1) * NUM_ENVS]))


def hold_once(optimizer: torch.optim.Optimizer) -> None:
    """Remove parameters that rsl_rl's optimizer holds a second time: those of shared encoders."""
    for group in optimizer.param_groups:
        group["params"] = list({id(parameter): parameter for parameter in group["params"]}.values())


def run_case(name: str, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Build, collect one rollout, update once; returns everything that the other side needs."""
    seed = len(name.removesuffix("_once"))
    torch.manual_seed(seed)
    env = RecordedEnv(seed=seed)
    is_distillation = "student" in config
    given = copy.deepcopy(config)
    symmetry = given["algorithm"].get("symmetry_cfg")
    if symmetry:
        symmetry["data_augmentation_func"] = mirror
    runner = (DistillationRunner if is_distillation else OnPolicyRunner)(env, given, log_dir=None, device="cpu")
    alg = runner.alg
    if name == "cnn_shared_once":
        hold_once(alg.optimizer)
    fill_normalizers(alg, env)
    alg.train_mode()
    arrays = {"config": np.array(json.dumps(config)), "version": np.array(version("rsl-rl-lib"))}
    networks = [alg.student] if is_distillation else [alg.actor, alg.critic]
    counts = {id(p): p.numel() for network in networks for p in network.parameters()}
    arrays["num_parameters"] = np.array(sum(counts.values()))
    before = flat("before/", copy.deepcopy(alg.save()))
    obs = env.get_observations()
    with torch.inference_mode():
        for step in range(NUM_STEPS):
            arrays[f"mean/{step}"] = np.zeros(0)
            actions = alg.act(obs)
            acting = alg.student if is_distillation else alg.actor
            means = acting.output_mean if acting.distribution is not None else actions
            arrays[f"mean/{step}"] = means.numpy().copy()
            obs, rewards, dones, extras = env.step(actions)
            alg.process_env_step(obs, rewards, dones, extras)
        alg.compute_returns(obs)
    storage = alg.storage
    recorded = ["actions", "rewards", "dones"]
    recorded += ["privileged_actions"] if is_distillation else ["values", "actions_log_prob", "returns"]
    arrays |= {f"storage/{key}": getattr(storage, key).numpy().copy() for key in recorded}
    if not is_distillation:
        arrays |= {f"storage/distribution_{k}": p.numpy().copy() for k, p in enumerate(storage.distribution_params)}
    torch.manual_seed(UPDATE_SEED)
    losses = alg.update()
    arrays |= {f"loss/{key}": np.array(value) for key, value in losses.items()}
    arrays |= {f"obs/{key}": table for key, table in env.tables.items()}
    arrays |= {"env/rewards": env.rewards, "env/dones": env.dones, "env/time_outs": env.time_outs}
    arrays["learning_rate"] = np.array(alg.learning_rate)
    return arrays | before | flat("after/", alg.save())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if sys.argv[2] == "float64":
        torch.set_default_dtype(torch.float64)
        # rsl_rl rounds the discount to float32 with it.
        torch.Tensor.float = torch.Tensor.double  # pyright: ignore[reportAttributeAccessIssue]
    folder.mkdir(parents=True, exist_ok=True)
    for case, settings in CASES.items():
        np.savez_compressed(folder / f"{case}.npz", **run_case(case, settings))
        print(case, flush=True)
