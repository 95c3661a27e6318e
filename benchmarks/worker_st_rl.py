"""The st_rl side of ppo_cpu.py and ppo_gpu.py: its runner on prepared data."""

import logging
from contextlib import nullcontext
from typing import Any

import torch
from workload import RecordedSteps, Stopwatch, Training, Workload, serve, set_up_torch

import st_rl
from st_rl.cli.support.torch_setup import choose_update_threads
from st_rl.env import VecEnv
from st_rl.runners import build_runner
from st_rl.sim.tasks import make_task

# Settings chosen in `prepare`, reported with the versions.
CHOSEN: dict[str, str] = {}


class RecordedEnv(VecEnv):
    """An environment that ignores the actions and replays prepared steps."""

    def __init__(self, workload: Workload):
        # A captured rollout replays the rows it was captured with, so one rollout of data is enough.
        self.is_graph_safe = workload.device != "cpu"
        self._steps = RecordedSteps(workload, rollouts=1 if self.is_graph_safe else 4)
        self.num_envs = workload.robots
        self.num_obs = workload.observations
        self.num_privileged_obs = None
        self.num_actions = workload.actions
        self.max_episode_length = 1000
        self.device = workload.device
        self.episode_length_buf = torch.zeros(workload.robots, dtype=torch.int64, device=self.device)
        self.extras: dict[str, Any] = {}
        self._obs = self._steps.next()[0]

    def during_capture(self, stream: Any) -> Any:
        """No-op."""
        return nullcontext()

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """The latest observation."""
        return self._obs, {"observations": {}}

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """The latest observation: there is nothing to reset."""
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The next prepared step."""
        self._obs, rewards, dones, time_outs = self._steps.next()
        return self._obs, rewards, dones, {"observations": {}, "time_outs": time_outs}


def prepare(workload: Workload) -> Training:
    set_up_torch(workload)
    policy: dict[str, Any] = {
        "class_name": "ActorCritic",
        "actor_hidden_dims": list(workload.hidden_dims),
        "critic_hidden_dims": list(workload.hidden_dims),
        "activation": "elu",
    }
    if workload.rnn_hidden_size is not None:
        policy |= {
            "class_name": "ActorCriticRecurrent",
            "rnn_type": "lstm",
            "rnn_hidden_size": workload.rnn_hidden_size,
            "rnn_num_layers": 1,
        }
    algorithm = {
        "class_name": "PPO",
        **workload.algorithm_config(),
        "mixed_precision": workload.mixed_precision,
    }
    config = {
        "num_steps_per_env": workload.steps,
        "empirical_normalization": True,
        "engine": workload.engine,
        "policy": policy,
        "algorithm": algorithm,
    }
    env = RecordedEnv(workload) if workload.task is None else make_task(workload.task, workload.robots, workload.device)
    config["update_threads"] = workload.update_threads
    if workload.update_threads == "auto":
        config["update_threads"] = choose_update_threads(None, {**config, "update_threads": None}, env, workload.device)
    CHOSEN["update threads"] = str(config["update_threads"])
    runner = build_runner("OnPolicyRunner", env, config, None, workload.device)
    watch = Stopwatch()
    collect, update = runner._collect_rollout, runner.alg.update

    def timed_collect() -> Any:
        watch.start()
        outcome = collect()
        watch.stop("acting")
        return outcome

    def timed_update(iteration: int) -> Any:
        watch.start()
        outcome = update(iteration)
        # rsl_rl reads every loss for its log once per iteration; do the same.
        for values in outcome:
            torch.stack(list(values.values()) or [torch.zeros(())]).tolist()
        watch.stop("update")
        return outcome

    runner._collect_rollout, runner.alg.update = timed_collect, timed_update

    def train(iterations: int) -> dict[str, list[float]]:
        runner.learn(iterations)
        return watch.read()

    return train


if __name__ == "__main__":
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    serve(prepare, lambda: {"st_rl": st_rl.__version__, "torch": torch.__version__, **CHOSEN})
