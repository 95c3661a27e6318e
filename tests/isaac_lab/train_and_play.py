"""Isaac Lab's cart-pole trained and played as its scripts for rsl_rl do, but for the import of the runner.

    python tests/isaac_lab/train_and_play.py FOLDER

Prints JSON. Environment, wrapper, configurations and exporters are Isaac Lab's; the physics is a stand-in.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from st_rl.runners import DistillationRunner, OnPolicyRunner
from tests.isaac_lab.simulator import find_sources, launch

TASK = "Isaac-Cartpole-Direct-v0"


def make_env(agent: Any, num_envs: int, groups: tuple[str, ...] = (), is_anymal: bool = False) -> Any:
    """The environment in Isaac Lab's wrapper, with the observation as further groups.

    With `is_anymal` observations and actions have the sizes of an ANYmal on flat ground, of which Isaac Lab's own
    symmetry function mirrors the joints.
    """
    import gymnasium
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper  # pyright: ignore[reportMissingImports]
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry  # pyright: ignore[reportMissingImports]

    env_cfg = load_cfg_from_registry(TASK, "env_cfg_entry_point")
    env_cfg.scene.num_envs, env_cfg.seed, env_cfg.sim.device = num_envs, agent.seed, "cpu"
    env_cfg.action_space = 12 if is_anymal else 1
    env: Any = gymnasium.make(TASK, cfg=env_cfg, render_mode=None)
    observe, padding = env.unwrapped._get_observations, torch.zeros(num_envs, 44 if is_anymal else 0)
    if is_anymal:
        env.unwrapped.observation_manager = SimpleNamespace(active_terms={"policy": []}, compute=lambda: get_groups())

    def get_groups() -> dict[str, torch.Tensor]:
        return {name: torch.cat((observe()["policy"], padding), dim=1) for name in ("policy", *groups)}

    env.unwrapped._get_observations = get_groups
    return RslRlVecEnvWrapper(env, clip_actions=agent.clip_actions)


def train(agent: Any, folder: Path, iterations: int) -> dict[str, float]:
    """Train as `train.py` does; returns the mean episode lengths of the first and the last iterations."""
    env = make_env(agent, 64)
    lengths: list[tuple[int, float]] = []
    step = env.step

    def recorded_step(actions: torch.Tensor) -> Any:
        before = env.episode_length_buf + 1
        outcome = step(actions)
        lengths.extend((runner.current_learning_iteration, float(n)) for n in before[outcome[2].bool()])
        return outcome

    env.step = recorded_step
    runner = OnPolicyRunner(env, agent.to_dict(), log_dir=str(folder), device=agent.device)
    runner.add_git_repo_to_log(__file__)
    begin = time.process_time()
    runner.learn(num_learning_iterations=iterations, init_at_random_ep_len=False)
    env.close()
    late = [length for iteration, length in lengths if iteration > 0.8 * iterations]
    early = [length for iteration, length in lengths if iteration < 0.2 * iterations]
    return {
        "seconds": time.process_time() - begin,
        "early_length": sum(early) / len(early),
        "late_length": sum(late) / len(late),
    }


def play(agent: Any, checkpoint: Path, exported: Path) -> dict[str, float]:
    """Load, export and act as `play.py` does; returns how far the exported file is from the policy."""
    from isaaclab_rl.rsl_rl import export_policy_as_jit, export_policy_as_onnx  # pyright: ignore[reportMissingImports]

    env = make_env(agent, 16)
    runner = OnPolicyRunner(env, agent.to_dict(), log_dir=None, device=agent.device)
    runner.load(str(checkpoint))
    policy = runner.get_inference_policy(device=env.unwrapped.device)
    network = runner.alg.policy
    normalizer = network.actor_obs_normalizer
    export_policy_as_jit(network, normalizer=normalizer, path=str(exported), filename="policy.pt")
    try:
        export_policy_as_onnx(network, normalizer=normalizer, path=str(exported), filename="policy.onnx")
    except ModuleNotFoundError as error:  # torch's exporter needs onnx
        print(error, file=sys.stderr)
    jit = torch.jit.load(exported / "policy.pt")
    obs, differences, alive = env.get_observations(), [], 0.0
    with torch.inference_mode():
        for _ in range(100):
            actions = policy(obs)
            differences.append((jit(obs["policy"]) - actions).abs().max().item())
            obs, _, dones, _ = env.step(actions)
            alive += 1.0 - dones.float().mean().item()
    env.close()
    return {"difference": max(differences), "alive": alive / 100}


def build_every_configuration() -> dict[str, str]:
    """Train every configuration that Isaac Lab registers for rsl_rl for one iteration; returns errors by name."""
    import gymnasium
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry  # pyright: ignore[reportMissingImports]

    errors: dict[str, str] = {}
    found: dict[str, tuple[str, str]] = {}
    for task, spec in gymnasium.registry.items():
        found |= {str(spec.kwargs[key]): (task, key) for key in spec.kwargs if key.startswith("rsl_rl")}
    for name, (task, key) in found.items():
        agent = load_cfg_from_registry(task, key)
        agent.device, agent.num_steps_per_env = "cpu", 4
        groups = agent.obs_groups if isinstance(agent.obs_groups, dict) else {}
        names = {group for members in groups.values() for group in members} | {"critic", "teacher", "rnd_state"}
        is_anymal = getattr(agent.algorithm, "symmetry_cfg", None) is not None
        env = make_env(agent, 16, tuple(sorted(names)), is_anymal)
        try:
            kind = DistillationRunner if agent.class_name == "DistillationRunner" else OnPolicyRunner
            runner = kind(env, agent.to_dict(), log_dir=None, device="cpu")
            if kind is OnPolicyRunner:
                runner.learn(1)
            errors[name] = ""
        except Exception as error:
            errors[name] = repr(error)
        env.close()
    return errors


def main() -> None:
    folder = Path(sys.argv[1])
    launch(find_sources())
    import isaaclab_tasks  # noqa: F401  # pyright: ignore[reportMissingImports]  # registers the tasks
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry  # pyright: ignore[reportMissingImports]

    agent = load_cfg_from_registry(TASK, "rsl_rl_cfg_entry_point")
    agent.device = "cpu"
    agent.policy.actor_obs_normalization = agent.policy.critic_obs_normalization = True
    result: dict[str, Any] = {"train": train(agent, folder / "run", 40)}
    result["play"] = play(agent, folder / "run" / "model_40.pt", folder / "exported")
    result["errors"] = build_every_configuration()
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
