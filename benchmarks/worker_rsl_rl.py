"""The rsl_rl side of ppo_cpu.py and ppo_gpu.py: its runner on the same prepared data, in its virtual environment."""

from importlib.metadata import version
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from workload import RecordedSteps, Stopwatch, Training, Workload, serve, set_up_torch


class RecordedEnv(VecEnv):
    """An environment that ignores the actions and replays prepared steps."""

    def __init__(self, workload: Workload):
        self._steps = RecordedSteps(workload)
        # Built before the timing: creating observations is not part of the library's work.
        self._groups = [
            TensorDict({"policy": obs}, batch_size=[workload.robots], device=workload.device)
            for obs in self._steps.observations
        ]
        self.num_envs = workload.robots
        self.num_actions = workload.actions
        self.max_episode_length = 1000
        self.device = workload.device
        self.cfg = {}
        self.episode_length_buf = torch.zeros(workload.robots, dtype=torch.int64, device=self.device)
        self._obs = self._groups[0]

    def get_observations(self) -> TensorDict:
        """The latest observation."""
        return self._obs

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The next prepared step."""
        self._obs = self._groups[self._steps.position]
        _, rewards, dones, time_outs = self._steps.next()
        return self._obs, rewards, dones, {"time_outs": time_outs}


class TaskEnv(VecEnv):
    """A built-in task of st_rl as an rsl_rl environment."""

    def __init__(self, workload: Workload):
        from st_rl.sim.tasks import make_task

        self._task = make_task(workload.task, workload.robots, workload.device)
        self.num_envs, self.num_actions = self._task.num_envs, self._task.num_actions
        self.max_episode_length, self.device, self.cfg = self._task.max_episode_length, workload.device, {}

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps of the current episode."""
        return self._task.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:
        self._task.episode_length_buf = value

    def _groups(self, extras: dict[str, Any]) -> TensorDict:
        return TensorDict(extras["observations"], batch_size=[self.num_envs])

    def get_observations(self) -> TensorDict:
        """The latest observation."""
        return self._groups(self._task.get_observations()[1])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """One step of the task."""
        _, rewards, dones, extras = self._task.step(actions)
        return self._groups(extras), rewards, dones.long(), {"time_outs": extras["time_outs"], "log": extras["log"]}


def prepare(workload: Workload) -> Training:
    set_up_torch(workload)
    model: dict[str, Any] = {
        "class_name": "rsl_rl.models:MLPModel",
        "hidden_dims": list(workload.hidden_dims),
        "activation": "elu",
        "obs_normalization": True,
    }
    if workload.rnn_hidden_size is not None:
        model |= {
            "class_name": "rsl_rl.models:RNNModel",
            "rnn_type": "lstm",
            "rnn_hidden_dim": workload.rnn_hidden_size,
            "rnn_num_layers": 1,
        }
    distribution = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution", "init_std": 1.0}
    config = {
        "num_steps_per_env": workload.steps,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["critic" if workload.task else "policy"]},
        "actor": {**model, "distribution_cfg": distribution},
        "critic": dict(model),
        "algorithm": {
            "class_name": "rsl_rl.algorithms:PPO",
            **workload.algorithm_config(),
            "rnd_cfg": None,
        },
    }
    env = RecordedEnv(workload) if workload.task is None else TaskEnv(workload)
    runner = OnPolicyRunner(env, config, log_dir=None, device=workload.device)
    watch = Stopwatch()
    update = runner.alg.update
    train_mode = runner.alg.train_mode

    def start() -> None:
        train_mode()
        watch.start()

    def timed_update() -> Any:
        watch.stop("acting")
        outcome = update()
        watch.stop("update")
        return outcome

    # Between an update and the next rollout the runner only logs.
    runner.alg.train_mode, runner.alg.update = start, timed_update
    runner.logger.log = lambda **_: watch.start()

    def train(iterations: int) -> dict[str, list[float]]:
        runner.learn(iterations)
        return watch.read()

    return train


if __name__ == "__main__":
    serve(prepare, lambda: {"rsl-rl-lib": version("rsl-rl-lib"), "torch": torch.__version__})
