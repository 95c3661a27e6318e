"""Distillations with a privileged teacher; `python -m` of this module resumes those that another process started."""

import sys
from pathlib import Path
from typing import Any

import torch

from st_rl.modules import ActorCritic, EmpiricalNormalization
from st_rl.runners import OnPolicyRunner
from st_rl.utils.files import save_checkpoint
from tests.fakes import EchoEnv
from tests.runners.training import recurrent, small_config

NUM_OBS, NUM_ACTIONS = 3, 2
# The critic observation: the actor observation and the target action.
NUM_CRITIC_OBS = NUM_OBS + NUM_ACTIONS
TEACHER = {"class_name": "ActorCritic", "actor_hidden_dims": [], "critic_hidden_dims": [], "init_noise_std": 0.1}


def save_perfect_teacher(path: Path) -> str:
    """Save a teacher that reads the target action from the normalized critic observation."""
    normalizer = EmpiricalNormalization(shape=[NUM_CRITIC_OBS])
    normalizer.update(0.5 + 3.0 * torch.randn(200, NUM_CRITIC_OBS))
    teacher = ActorCritic(
        NUM_CRITIC_OBS, NUM_CRITIC_OBS, NUM_ACTIONS, **{k: v for k, v in TEACHER.items() if k != "class_name"}
    )
    scale, mean = normalizer.std + normalizer.eps, normalizer.mean
    with torch.no_grad():
        teacher.actor[0].weight.zero_()
        for action in range(NUM_ACTIONS):
            teacher.actor[0].weight[action, NUM_OBS + action] = scale[NUM_OBS + action]
        teacher.actor[0].bias.copy_(mean[NUM_OBS:])
    state = {"model_state_dict": teacher.state_dict(), "obs_norm_state_dict": normalizer.state_dict()}
    save_checkpoint({**state, "iter": 1, "infos": None}, path)
    return str(path)


def echo_env(**kwargs: Any) -> EchoEnv:
    """Echo the previous step; only the critic observation contains the target."""
    settings: dict[str, Any] = {"episode_length": 20, "termination_prob": 0.02, **kwargs}
    return EchoEnv(num_obs=NUM_OBS, num_actions=NUM_ACTIONS, memory=True, num_privileged_obs=NUM_CRITIC_OBS, **settings)


# The second has a dilated buffer, the third a recurrent teacher.
STUDENTS: dict[str, dict[str, Any]] = {
    "gru": {"policy": recurrent("gru"), "algorithm": {"hidden_state_resample_prob": 0.2}},
    "rolling_lstm": {
        "policy": recurrent("lstm"),
        "algorithm": {
            "buffer_dilation_ratio": 2.5,
            "lr_scheduler_class_name": "StepLR",
            "lr_scheduler": {"step_size": 2},
        },
    },
    "rolling_mlp": {"policy": {}, "algorithm": {"buffer_dilation_ratio": 2.0, "using_ppo": False}},
    "old_teacher": {
        "policy": {},
        "algorithm": {"teacher_policy": recurrent("lstm"), "action_labels_from_sample": True},
    },
}


def make_distillation(name: str, folder: Path, seed: int) -> OnPolicyRunner:
    """Build a distillation that uses every part with a state."""
    torch.manual_seed(seed)
    student = STUDENTS[name]
    algorithm = {
        "class_name": "TPPO",
        "teacher_act_prob": "exp",
        "distillation_loss_coef": "linear",
        "update_times_scale": 8,
        **student["algorithm"],
    }
    if name != "old_teacher":
        algorithm["teacher_policy"] = {**TEACHER, "teacher_ac_path": str(folder.parent.parent / "teacher.pt")}
    config = small_config(student["policy"], algorithm, empirical_normalization=True, num_steps_per_env=5)
    return OnPolicyRunner(echo_env(num_envs=6, episode_length=7, seed=seed), config, log_dir=folder)


def finish(folder: Path) -> None:
    """Resume the trainings of the folder to their end, in a process with another random state."""
    for name in STUDENTS:
        # A teacher without a checkpoint is initialized again, with the same seed.
        runner = make_distillation(name, folder / name, seed=1 if name == "old_teacher" else 77)
        runner.load(folder / name / "model_3.pt")
        runner.learn(3)
        runner.close()


if __name__ == "__main__":
    finish(Path(sys.argv[1]))
