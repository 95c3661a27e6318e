"""Translates settings of rsl_rl to those of this library; what has no counterpart is an error that names its key.

`policy` dictionaries of rsl_rl 2 and 3 need `translate_policy`; dictionaries of rsl_rl 5 with `actor` and `critic`
need `translate_training`.
"""

from collections.abc import Mapping
from typing import Any

POLICY_KEYS = {"rnn_hidden_dim": "rnn_hidden_size"}
"""Keys of rsl_rl's `policy` with another name here."""

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

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop"}
ACTIVATIONS = {"crelu": "CELU", "identity": "Identity"}
"""Activations that rsl_rl calls by another name."""

ONLY_VALUE: dict[str, Any] = {
    "algorithm.class_name": "PPO",
    "algorithm.use_mixed_precision": False,
    "algorithm.symmetry_cfg": None,
    "actor.distribution_cfg.class_name": "GaussianDistribution",
    "actor.distribution_cfg.learn_std": True,
    "critic.distribution_cfg": None,
}
"""Settings that have a single counterpart here."""

HINTS = {
    "algorithm.use_mixed_precision": "set 'mixed_precision': 'bf16' of our PPO instead",
    "algorithm.symmetry_cfg": "see 'symmetry_cfg' in the configuration guide",
    "actor.distribution_cfg.class_name": "for bounded actions set 'action_bound' of our policy",
    "actor.distribution_cfg.learn_std": "set min_noise_std and max_noise_std of our policy to init_noise_std",
}

# Classes of models and the settings that each takes beside those of an MLPModel.
MLP_KEYS = ("hidden_dims", "activation", "obs_normalization", "distribution_cfg")
RNN_KEYS = ("rnn_type", "rnn_hidden_dim", "rnn_num_layers")
MODEL_KEYS: dict[str, tuple[str, ...]] = {
    "MLPModel": (),
    "RNNModel": RNN_KEYS,
    "CNNModel": ("cnn_cfg",),
    "SpatialSoftmaxCNNModel": ("cnn_cfg",),
}


def translate_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `policy` dictionary with rsl_rl's keys renamed; ValueError for one without counterpart."""
    translated = dict(policy)
    if translated.pop("state_dependent_std", None):
        raise ValueError(
            "policy.state_dependent_std=True has no counterpart: one standard deviation for each action is learned; "
            "leave it out, or set 'noise_std_type': 'log'"
        )
    for theirs, ours in POLICY_KEYS.items():
        value = translated.pop(theirs, None)
        if value is None:
            continue
        if translated.get(ours) not in (None, value):
            raise ValueError(f"policy.{theirs}={value} and policy.{ours}={translated[ours]} differ; give one of them")
        translated[ours] = value
    return translated


def translate_training(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat training configuration for a dictionary of rsl_rl 5 with `actor`, `critic` and `algorithm`.

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
    """Return the settings of PPO; `rnd_cfg` has the same keys in both libraries."""
    translated, rest = dict(ALGORITHM_DEFAULTS), dict(algorithm)
    for key in [*ALGORITHM_DEFAULTS, "rnd_cfg"]:
        value = rest.pop(key, None)
        if value is not None or (key == "desired_kl" and key in algorithm):
            translated[key] = value
    optimizer = str(rest.pop("optimizer", None) or "adam").lower()
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"algorithm.optimizer is '{optimizer}'; use one of: {', '.join(OPTIMIZERS)}")
    _reject_others("algorithm", rest)
    return {**translated, "optimizer_class_name": OPTIMIZERS[optimizer]}


def translate_models(actor: Mapping[str, Any], critic: Mapping[str, Any], shares_encoders: bool) -> dict[str, Any]:
    """Return the `policy` dictionary for the two models of rsl_rl 5."""
    classes = [_model_class("actor", actor), _model_class("critic", critic)]
    activations = [str(model.get("activation") or "elu").lower() for model in (actor, critic)]
    if activations[0] != activations[1]:
        raise ValueError(f"critic.activation is '{activations[1]}', actor.activation '{activations[0]}'; use the same")
    policy: dict[str, Any] = {
        "class_name": "ActorCritic",
        "actor_hidden_dims": _hidden_dims("actor", actor),
        "critic_hidden_dims": _hidden_dims("critic", critic),
        "activation": ACTIVATIONS.get(activations[0], activations[0]),
        **_translate_distribution(actor.get("distribution_cfg")),
    }
    if "RNNModel" in classes:
        return {**policy, **_translate_rnn(actor, critic, classes)}
    if "cnn_cfg" in (*MODEL_KEYS[classes[0]], *MODEL_KEYS[classes[1]]):
        return {**policy, **_translate_cnn(actor, critic, classes, shares_encoders)}
    if shares_encoders:
        raise ValueError("algorithm.share_cnn_encoders=True, but actor and critic have no CNN; leave it out")
    return policy


def _model_class(part: str, model: Mapping[str, Any]) -> str:
    """Return the class of a model without its module; ValueError for one, or a key of one, without counterpart."""
    path = str(model.get("class_name") or "MLPModel")
    name = path.replace(":", ".").rsplit(".", 1)[-1]
    if name not in MODEL_KEYS:
        raise ValueError(f"{part}.class_name is '{path}', which has no counterpart; known: {', '.join(MODEL_KEYS)}")
    rest = {key: value for key, value in model.items() if key not in ("class_name", *MLP_KEYS, *MODEL_KEYS[name])}
    if rest.get("rnn_type") is None:
        # Configuration classes send these keys to all models.
        rest = {key: value for key, value in rest.items() if key not in RNN_KEYS}
    if part == "critic" and model.get("distribution_cfg") is not None:
        rest["distribution_cfg"] = model["distribution_cfg"]
    _reject_others(part, rest)
    return name


def _reject_others(part: str, rest: Mapping[str, Any]) -> None:
    """ValueError for a setting that is neither None nor the only value that has a counterpart."""
    for key, value in rest.items():
        name = f"{part}.{key}"
        if value is None or (name in ONLY_VALUE and value == ONLY_VALUE[name]):
            continue
        hint = f"; {HINTS[name]}" if name in HINTS else ""
        only = f", only {ONLY_VALUE[name]!r}" if name in ONLY_VALUE else ""
        raise ValueError(f"{name}={value!r} of rsl_rl has no counterpart here{only}: leave it out{hint}")


def _hidden_dims(part: str, model: Mapping[str, Any]) -> list[int]:
    sizes = [int(size) for size in model.get("hidden_dims") or (256, 256, 256)]
    if min(sizes) < 1:
        raise ValueError(f"{part}.hidden_dims is {sizes}; give the sizes as numbers, -1 has no counterpart")
    return sizes


def _translate_distribution(distribution: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of the action noise."""
    if distribution is None:
        raise ValueError("actor.distribution_cfg is missing; give {'class_name': 'GaussianDistribution', ...}")
    rest = dict(distribution)
    rest["class_name"] = str(rest.get("class_name") or "GaussianDistribution").replace(":", ".").rsplit(".", 1)[-1]
    noise: dict[str, Any] = {
        "init_noise_std": float(rest.pop("init_std", 1.0)),
        "noise_std_type": rest.pop("std_type", None) or "scalar",
    }
    limits = rest.pop("std_range", None)
    if limits is not None:
        noise["min_noise_std"], noise["max_noise_std"] = (float(limit) for limit in limits)
    _reject_others("actor.distribution_cfg", rest)
    return noise


def _translate_rnn(actor: Mapping[str, Any], critic: Mapping[str, Any], classes: list[str]) -> dict[str, Any]:
    """Return the recurrent settings, which actor and critic must share."""
    if classes[0] != classes[1]:
        raise ValueError(
            f"actor.class_name is {classes[0]}, critic.class_name {classes[1]}; here both are recurrent or neither is"
        )
    defaults = {"rnn_type": "lstm", "rnn_hidden_dim": 256, "rnn_num_layers": 1}
    for key, default in defaults.items():
        values = [default if model.get(key) is None else model[key] for model in (actor, critic)]
        if values[0] != values[1]:
            raise ValueError(f"critic.{key}={values[1]} differs from actor.{key}={values[0]}; use the same for both")
        defaults[key] = values[0]
    return {"class_name": "ActorCriticRecurrent", **translate_policy(defaults)}


def _translate_cnn(
    actor: Mapping[str, Any], critic: Mapping[str, Any], classes: list[str], shares_encoders: bool
) -> dict[str, Any]:
    """Return the encoders of image groups: one for all, or one for each named group."""
    names, kwargs = _encoders("actor", actor, classes[0])
    critic_names, critic_kwargs = _encoders("critic", critic, classes[1])
    translated: dict[str, Any] = {
        "class_name": "EncoderActorCritic",
        "encoder_class_name": "CnnModel",
        "encoder_component_names": names,
        "encoder_kwargs": kwargs,
    }
    if shares_encoders:
        if names != critic_names:
            raise ValueError(
                f"algorithm.share_cnn_encoders=True, but actor.cnn_cfg is for {names} and critic.cnn_cfg for "
                f"{critic_names}; give both the same groups"
            )
        return {**translated, "critic_encoder_component_names": "shared"}
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
