"""Translates settings of rsl_rl 2 to 5 to those of this library; a setting without counterpart is a named error.

rsl_rl 2 and 3 describe both networks in `policy`, rsl_rl 4 and 5 in `actor` and `critic`, or in `student` and `teacher`
for a distillation.
"""

from collections.abc import Mapping
from typing import Any

from st_rl.utils.config import drop_none
from st_rl.utils.log import logger

POLICY_KEYS = {"rnn_hidden_dim": "rnn_hidden_size"}
"""Keys of rsl_rl's `policy` with another name here."""
STUDENT_POLICIES = ("StudentTeacher", "StudentTeacherRecurrent")
"""Classes of `policy` in a distillation of rsl_rl 2 and 3."""

ALGORITHM_DEFAULTS: dict[str, Any] = {
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "clip_param": 0.2,
    "gamma": 0.99,
    "lam": 0.95,
    "value_loss_coef": 1.0,
    "entropy_coef": 0.01,
    "learning_rate": 0.001,
    "max_grad_norm": 1.0,
    "use_clipped_value_loss": True,
    "schedule": "adaptive",
    "desired_kl": 0.01,
    "normalize_advantage_per_mini_batch": False,
}
"""Keys of rsl_rl's PPO with the same name here, and rsl_rl's defaults, which differ from those here."""

DISTILLATION_DEFAULTS: dict[str, Any] = {
    "num_learning_epochs": 1,
    "gradient_length": 15,
    "learning_rate": 1e-3,
    "max_grad_norm": None,
    "loss_type": "mse",
}
"""Keys of rsl_rl's Distillation and their defaults there."""

LOSSES = {"mse": "mse_mean", "huber": "huber"}
OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop"}
ACTIVATIONS = {"crelu": "CELU", "identity": "Identity"}
"""Activations that rsl_rl calls by another name."""
DISTRIBUTIONS = ("GaussianDistribution", "HeteroscedasticGaussianDistribution")

# Keys of rsl_rl's algorithms that describe the machine, not the learning.
MACHINE_KEYS = ("multi_gpu_cfg", "grad_reduce_bucket_mb", "device")
HINTS = {"actor.distribution_cfg.class_name": "for bounded actions set 'action_bound' of our policy"}

# Classes of models and the settings that each takes in addition to those of an MLPModel.
MLP_KEYS = ("hidden_dims", "activation", "obs_normalization", "distribution_cfg")
RNN_DEFAULTS: dict[str, Any] = {"rnn_type": "lstm", "rnn_hidden_dim": 256, "rnn_num_layers": 1}
MODEL_KEYS: dict[str, tuple[str, ...]] = {
    "MLPModel": (),
    "RNNModel": tuple(RNN_DEFAULTS),
    "CNNModel": ("cnn_cfg",),
    "SpatialSoftmaxCNNModel": ("cnn_cfg",),
}
# A standard deviation that leaves the actions of a network without distribution unchanged.
NO_NOISE = {"init_noise_std": 1e-6, "learn_noise_std": False}


def translate_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training configuration of rsl_rl in the form of this library; any other is returned unchanged.

    ValueError, naming the key, for a setting without counterpart. Logs what was made of it.
    """
    models = [name for name in ("actor", "student") if isinstance(config.get(name), Mapping)]
    if "policy" not in config and models:
        is_student = models[0] == "student"
        translated = translate_distillation(config) if is_student else translate_training(config)
    elif isinstance(config.get("policy"), Mapping) and config["policy"].get("class_name") in STUDENT_POLICIES:
        translated = translate_distillation(_split_student_teacher(config))
    else:
        return dict(config)
    logger.info(f"settings of rsl_rl: {describe(translated)}")
    return translated


def describe(translated: Mapping[str, Any]) -> str:
    """Say in one line what a translated configuration trains."""
    policy, algorithm = translated["policy"], translated["algorithm"]
    layers = f"actor {policy['actor_hidden_dims']}, critic {policy['critic_hidden_dims']}"
    extras = [name for name in ("rnd_cfg", "symmetry_cfg", "mixed_precision") if algorithm.get(name)]
    if policy.get("state_dependent_std"):
        extras.append("state-dependent deviation")
    if algorithm.get("clip_gradients_separately"):
        extras.append("actor and critic gradients clipped separately")
    if algorithm["class_name"] == "TPPO":
        layers, extras = f"student {policy['actor_hidden_dims']}", ["imitation without PPO"]
    joined = "".join(f", {extra}" for extra in extras)
    return f"{policy['class_name']} ({layers}, {policy['activation']}) trained by {algorithm['class_name']}{joined}"


def translate_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `policy` dictionary with rsl_rl's keys renamed."""
    translated = dict(policy)
    for theirs, ours in POLICY_KEYS.items():
        value = translated.pop(theirs, None)
        if value is None:
            continue
        if translated.get(ours) not in (None, value):
            raise ValueError(f"policy.{theirs}={value} and policy.{ours}={translated[ours]} differ; give one of them")
        translated[ours] = value
    return translated


def translate_training(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat training configuration for a dictionary with `actor`, `critic` and `algorithm`.

    All other keys are kept. ValueError, naming the key, for a setting without counterpart.
    """
    parts = {name: dict(config.get(name) or {}) for name in ("actor", "critic", "algorithm")}
    shares_encoders = bool(parts["algorithm"].pop("share_cnn_encoders", False))
    policy = translate_models(parts["actor"], parts["critic"], shares_encoders)
    algorithm = translate_algorithm(parts["algorithm"])
    switches = [bool(parts[name].get("obs_normalization")) for name in ("actor", "critic")]
    if any(switches) and policy["class_name"] == "EncoderActorCritic":
        # rsl_rl normalizes flat groups only.
        algorithm["unnormalized_components"] = ["images"]
    kept = {key: value for key, value in config.items() if key not in parts}
    policy |= {"actor_obs_normalization": switches[0], "critic_obs_normalization": switches[1]}
    return {**kept, "policy": policy, "algorithm": algorithm}


def translate_algorithm(algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of PPO; `rnd_cfg` and `symmetry_cfg` have the same keys in both libraries."""
    translated, rest = dict(ALGORITHM_DEFAULTS), dict(algorithm)
    _check_class("algorithm", rest.pop("class_name", None), "PPO")
    for key in [*ALGORITHM_DEFAULTS, "rnd_cfg", "symmetry_cfg"]:
        value = rest.pop(key, None)
        if value is not None or (key == "desired_kl" and key in algorithm):
            translated[key] = value
    if translated.get("rnd_cfg"):
        # rsl_rl 4 and 5 multiply the weight by the time step of the environment.
        translated["rnd_cfg"] = {**translated["rnd_cfg"], "scale_weight_by_step_dt": True}
    if rest.pop("use_mixed_precision", None):
        translated["mixed_precision"] = "bf16"
    translated["optimizer_class_name"] = _optimizer(rest)
    _reject_others("algorithm", rest)
    # What rsl_rl 4 and 5 do, and earlier versions and this library by default do not.
    return {**translated, "class_name": "PPO", "clip_gradients_separately": True, "exact_kl": True}


def translate_distillation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of TPPO without PPO for a dictionary with `student`, `teacher` and `algorithm`.

    The student reads the actor's observation and the teacher the critic's.
    """
    parts = {name: dict(config.get(name) or {}) for name in ("student", "teacher", "algorithm")}
    given = {**DISTILLATION_DEFAULTS, **drop_none(parts["algorithm"])}
    _check_class("algorithm", given.pop("class_name", None), "Distillation")
    rest = {key: value for key, value in given.items() if key not in DISTILLATION_DEFAULTS}
    precision = {"mixed_precision": "bf16"} if rest.pop("use_mixed_precision", None) else {}
    optimizer = _optimizer(rest)
    _reject_others("algorithm", rest)
    if given["loss_type"] not in LOSSES:
        raise ValueError(f"algorithm.loss_type is '{given['loss_type']}'; use one of: {', '.join(LOSSES)}")
    length = int(given["gradient_length"])
    algorithm: dict[str, Any] = {
        "class_name": "TPPO",
        "using_ppo": False,
        "teacher_act_prob": 0.0,
        "num_learning_epochs": int(given["num_learning_epochs"]),
        # rsl_rl sums the losses of `gradient_length` steps before each gradient step.
        "num_mini_batches": max(1, int(config.get("num_steps_per_env") or 1) // length),
        "distillation_loss_coef": float(length),
        "distill_target": LOSSES[given["loss_type"]],
        "learning_rate": float(given["learning_rate"]),
        "max_grad_norm": float(given["max_grad_norm"] or "inf"),
        "optimizer_class_name": optimizer,
        **precision,
    }
    student, teacher = (_translate_alone(name, parts[name]) for name in ("student", "teacher"))
    algorithm |= {"teacher_policy_class_name": teacher.pop("class_name"), "teacher_policy": teacher}
    switches = {f"{ours}_obs_normalization": bool(parts[theirs].get("obs_normalization"))
                for ours, theirs in (("actor", "student"), ("critic", "teacher"))}  # fmt: skip
    kept = {key: value for key, value in config.items() if key not in (*parts, "obs_groups")}
    return {
        **kept,
        "obs_groups": _student_groups(config.get("obs_groups") or {}),
        "policy": {**student, **switches},
        "algorithm": algorithm,
    }


def _translate_alone(part: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy of one model; it needs a critic too, which is as small as it can be and never trained."""
    critic: dict[str, Any] = {"hidden_dims": [1], "activation": model.get("activation")}
    name = _model_class(part, model)
    if name == "RNNModel":
        critic |= {"class_name": name, "rnn_type": model.get("rnn_type"), "rnn_hidden_dim": 1, "rnn_num_layers": 1}
    translated = translate_models({"distribution_cfg": None, **model}, critic, False, part)
    return translated if model.get("distribution_cfg") else {**translated, **NO_NOISE}


def _split_student_teacher(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a distillation of rsl_rl 2 and 3 in the form of rsl_rl 5."""
    policy = drop_none(config["policy"])
    is_recurrent = policy.pop("class_name") == "StudentTeacherRecurrent"
    is_teacher_recurrent = bool(policy.pop("teacher_recurrent", False))
    rnn = {key: policy.pop(key) for key in (*RNN_DEFAULTS, "rnn_hidden_size") if key in policy}
    if "rnn_hidden_size" in rnn:
        rnn.setdefault("rnn_hidden_dim", rnn.pop("rnn_hidden_size"))
    noise = {"init_std": policy.pop("init_noise_std", 0.1), "std_type": policy.pop("noise_std_type", "scalar")}
    activation = policy.pop("activation", "elu")
    models: dict[str, dict[str, Any]] = {}
    for name, recurrent in (("student", is_recurrent), ("teacher", is_recurrent and is_teacher_recurrent)):
        models[name] = {
            "class_name": "RNNModel" if recurrent else "MLPModel",
            "hidden_dims": policy.pop(f"{name}_hidden_dims", [256, 256, 256]),
            "activation": activation,
            "obs_normalization": policy.pop(f"{name}_obs_normalization", config.get("empirical_normalization")),
            **(rnn if recurrent else {}),
        }
    models["student"]["distribution_cfg"] = {"class_name": "GaussianDistribution", **noise}
    _reject_others("policy", policy)
    return {**{key: value for key, value in config.items() if key != "policy"}, **models}


def _student_groups(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return `obs_groups` with the names of the sets that this library reads."""
    student = groups.get("student") or groups.get("policy") or ["policy"]
    named = {"actor": student, "critic": groups.get("teacher") or ["teacher"]}
    return named | {key: value for key, value in groups.items() if key not in ("student", "policy", "teacher")}


def translate_models(
    actor: Mapping[str, Any], critic: Mapping[str, Any], shares_encoders: bool, part: str = "actor"
) -> dict[str, Any]:
    """Return the `policy` dictionary for two models of rsl_rl 5; `part` is what messages call the first of them."""
    classes = [_model_class(part, actor), _model_class("critic", critic)]
    activations = [str(model.get("activation") or "elu").lower() for model in (actor, critic)]
    names = [ACTIVATIONS.get(name, name) for name in activations]
    policy: dict[str, Any] = {
        "class_name": "ActorCritic",
        "actor_hidden_dims": _hidden_dims(part, actor),
        "critic_hidden_dims": _hidden_dims("critic", critic),
        "activation": names[0],
        **_translate_distribution(part, actor.get("distribution_cfg")),
    }
    if names[1] != names[0]:
        policy["critic_activation"] = names[1]
    if "RNNModel" in classes:
        return {**policy, **_translate_rnn(part, actor, critic, classes)}
    if "cnn_cfg" in (*MODEL_KEYS[classes[0]], *MODEL_KEYS[classes[1]]):
        return {**policy, **_translate_cnn(part, actor, critic, classes, shares_encoders)}
    if shares_encoders:
        raise ValueError("algorithm.share_cnn_encoders=True, but actor and critic have no CNN; leave it out")
    return policy


def _class_name(path: object) -> str:
    """Return the name of a class without its module, for a name, a path or the class itself."""
    name = path.__name__ if isinstance(path, type) else str(path)
    return name.replace(":", ".").rsplit(".", 1)[-1]


def _check_class(part: str, given: object, expected: str) -> None:
    if given is not None and _class_name(given) != expected:
        raise ValueError(
            f"{part}.class_name is '{given}', which has no counterpart here, only {expected} for these networks; "
            "give your own algorithm as 'package.module:Class' together with a 'policy' dictionary"
        )


def _optimizer(rest: dict[str, Any]) -> str:
    """Remove the optimizer from the settings and return its class name."""
    name = str(rest.pop("optimizer", None) or "adam").lower()
    if name not in OPTIMIZERS:
        raise ValueError(f"algorithm.optimizer is '{name}'; use one of: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def _model_class(part: str, model: Mapping[str, Any]) -> str:
    """Return the class of a model without its module; ValueError for one, or a key of one, without counterpart."""
    path = model.get("class_name") or "MLPModel"
    name = _class_name(path)
    if name not in MODEL_KEYS:
        raise ValueError(f"{part}.class_name is '{path}', which has no counterpart; known: {', '.join(MODEL_KEYS)}")
    rest = {key: value for key, value in model.items() if key not in ("class_name", *MLP_KEYS, *MODEL_KEYS[name])}
    if rest.get("rnn_type") is None:
        # Configuration classes send these keys to all models.
        rest = {key: value for key, value in rest.items() if key not in RNN_DEFAULTS}
    if part == "critic" and model.get("distribution_cfg") is not None:
        rest["distribution_cfg"] = model["distribution_cfg"]
    _reject_others(part, rest)
    return name


def _reject_others(part: str, rest: Mapping[str, Any]) -> None:
    """ValueError for a setting that is given and has no counterpart."""
    for key, value in rest.items():
        name = f"{part}.{key}"
        # Switches that are off ask for nothing.
        if value is None or value is False or key in MACHINE_KEYS:
            continue
        hint = f"; {HINTS[name]}" if name in HINTS else ""
        raise ValueError(f"{name}={value!r} of rsl_rl has no counterpart here: leave it out{hint}")


def _hidden_dims(part: str, model: Mapping[str, Any]) -> list[int]:
    sizes = [int(size) for size in model.get("hidden_dims") or (256, 256, 256)]
    if any(size < 1 and size != -1 for size in sizes):
        raise ValueError(f"{part}.hidden_dims is {sizes}; give sizes of at least 1, or -1 for the input size")
    return sizes


def _translate_distribution(part: str, distribution: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of the action noise."""
    if distribution is None:
        if part == "actor":
            raise ValueError("actor.distribution_cfg is missing; give {'class_name': 'GaussianDistribution', ...}")
        return dict(NO_NOISE)
    rest = dict(distribution)
    name = _class_name(rest.pop("class_name", None) or DISTRIBUTIONS[0])
    if name not in DISTRIBUTIONS:
        _reject_others(f"{part}.distribution_cfg", {"class_name": name})
    noise: dict[str, Any] = {
        "init_noise_std": float(rest.pop("init_std", 1.0)),
        "noise_std_type": rest.pop("std_type", None) or "scalar",
    }
    if name == DISTRIBUTIONS[1]:
        noise["state_dependent_std"] = True
    elif rest.pop("learn_std", True) is False:
        noise["learn_noise_std"] = False
    limits = rest.pop("std_range", None)
    if limits is not None:
        noise["min_noise_std"], noise["max_noise_std"] = (float(limit) for limit in limits)
    _reject_others(f"{part}.distribution_cfg", rest)
    return noise


def _translate_rnn(
    part: str, actor: Mapping[str, Any], critic: Mapping[str, Any], classes: list[str]
) -> dict[str, Any]:
    """Return the recurrent settings of actor and critic."""
    if classes[0] != classes[1]:
        raise ValueError(
            f"{part}.class_name is {classes[0]}, critic.class_name {classes[1]}; here both are recurrent or neither is"
        )
    settings = [
        {**RNN_DEFAULTS, **drop_none({key: model.get(key) for key in RNN_DEFAULTS})} for model in (actor, critic)
    ]
    own, others = (translate_policy(model) for model in settings)
    different = {f"critic_{key}": value for key, value in others.items() if value != own[key]}
    return {"class_name": "ActorCriticRecurrent", **own, **different}


def _translate_cnn(
    part: str, actor: Mapping[str, Any], critic: Mapping[str, Any], classes: list[str], shares_encoders: bool
) -> dict[str, Any]:
    """Return the encoders of image groups: one for all, or one for each named group."""
    names, kwargs = _encoders(part, actor, classes[0])
    translated: dict[str, Any] = {
        "class_name": "EncoderActorCritic",
        "encoder_class_name": "CnnModel",
        "encoder_component_names": names,
        "encoder_kwargs": kwargs,
    }
    if shares_encoders:
        # rsl_rl ignores the critic's own settings of its CNN then.
        if "cnn_cfg" not in MODEL_KEYS[classes[1]] or not names:
            raise ValueError("algorithm.share_cnn_encoders=True, but actor and critic do not both have a CNN")
        return {**translated, "critic_encoder_component_names": "shared"}
    critic_names, critic_kwargs = _encoders("critic", critic, classes[1])
    if critic_names:
        translated |= {"critic_encoder_component_names": critic_names, "critic_encoder_class_name": "CnnModel"}
        translated["critic_encoder_kwargs"] = critic_kwargs
    return translated


def _encoders(part: str, model: Mapping[str, Any], class_name: str) -> tuple[list[str], Any]:
    """Return the encoded components and the settings of their encoders; none for a model without CNN."""
    if "cnn_cfg" not in MODEL_KEYS[class_name]:
        return [], {}
    cnn_cfg = model.get("cnn_cfg")
    if not cnn_cfg:
        raise ValueError(f"{part}.cnn_cfg is missing; give its settings, or use the class MLPModel")
    is_softmax = class_name == "SpatialSoftmaxCNNModel"
    if all(isinstance(value, Mapping) for value in cnn_cfg.values()):
        return list(cnn_cfg), [_encoder_settings(settings, is_softmax) for settings in cnn_cfg.values()]
    return ["images"], _encoder_settings(cnn_cfg, is_softmax)


def _encoder_settings(cnn_cfg: Mapping[str, Any], is_softmax: bool) -> dict[str, Any]:
    """Return the settings of one `CnnModel`; the class decides about the spatial softmax, as in mjlab."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in cnn_cfg.items()}
    return {**plain, "spatial_softmax": is_softmax}
