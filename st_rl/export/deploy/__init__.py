"""The deploy kit: a policy from raw sensors to joint targets, with the proof that it does the same as in training."""

from st_rl.export.deploy.golden import record_golden, replay_golden
from st_rl.export.deploy.kit import OnnxStep, write_kit
from st_rl.export.deploy.raw_policy import PolicyStep, RawPolicy, SensorInterface, find_ignored_terms

__all__ = [
    "OnnxStep",
    "PolicyStep",
    "RawPolicy",
    "SensorInterface",
    "find_ignored_terms",
    "record_golden",
    "replay_golden",
    "write_kit",
]
