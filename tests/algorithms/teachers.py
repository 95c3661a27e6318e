"""Teacher checkpoints and TPPO students for the tests of TPPO."""

from st_rl.algorithms import TPPO
from st_rl.modules import ActorCritic, ActorCriticRecurrent, EmpiricalNormalization
from st_rl.utils.files import save_checkpoint
from tests.algorithms.rollouts import CRITIC_DIM, HIDDEN, NUM_ACTIONS, OBS_DIM, make_ppo

TEACHERS = {
    "mlp": (ActorCritic, {"class_name": "ActorCritic"}),
    "lstm": (
        ActorCriticRecurrent,
        {"class_name": "ActorCriticRecurrent", "rnn_type": "lstm", "rnn_hidden_size": HIDDEN},
    ),
}
SIZES = {"actor_hidden_dims": [7], "critic_hidden_dims": [7], "init_noise_std": 0.3}


def make_teacher(kind="mlp", num_obs=CRITIC_DIM):
    """Build a teacher and its `teacher_policy` settings."""
    cls, settings = TEACHERS[kind]
    settings = {**SIZES, **settings}
    kwargs = {key: value for key, value in settings.items() if key != "class_name"}
    return cls(num_obs, CRITIC_DIM, NUM_ACTIONS, **kwargs), settings


def statistics(samples):
    """A normalizer updated with samples `(n, O)`."""
    normalizer = EmpiricalNormalization(shape=[samples.shape[-1]], until=1.0e8)
    normalizer.update(samples)
    return normalizer.eval()


def save_teacher(path, policy, normalizer=None):
    """Write a checkpoint of the teacher."""
    payload = {"model_state_dict": policy.state_dict(), "iter": 7, "infos": None}
    if normalizer is not None:
        payload["obs_norm_state_dict"] = normalizer.state_dict()
    save_checkpoint(payload, path)
    return str(path)


def make_tppo(tmp_path, kind="mlp", teacher_kind="mlp", normalizer=None, sees_critic_obs=True, **kwargs):
    """Build a student with a teacher from a file; returns the algorithm and a copy of the teacher."""
    num_obs = CRITIC_DIM if sees_critic_obs else OBS_DIM
    teacher, settings = make_teacher(teacher_kind, num_obs)
    path = save_teacher(tmp_path / "model_7.pt", teacher, normalizer)
    alg = make_ppo(
        kind,
        algorithm=TPPO,
        teacher_policy={**settings, "teacher_ac_path": path},
        label_action_with_critic_obs=sees_critic_obs,
        **kwargs,
    )
    return alg, teacher
