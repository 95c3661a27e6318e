"""The distillation runner of rsl_rl: it gets its teacher with `load`."""

from pathlib import Path
from typing import Any

from st_rl.algorithms import TPPO
from st_rl.modules.policy.rsl_rl_checkpoint import teacher_weights
from st_rl.runners.on_policy_runner import OnPolicyRunner
from st_rl.utils.files import load_checkpoint


class DistillationRunner(OnPolicyRunner):
    """Trains a student on the labels of a teacher; `load` of a checkpoint without a student loads the teacher."""

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Train as `OnPolicyRunner`; ValueError without a teacher."""
        if isinstance(self.alg, TPPO) and not self.alg.has_teacher:
            raise ValueError(
                "the teacher is not loaded: call load(path) with a checkpoint of its training, or set teacher_ac_path"
            )
        return super().learn(*args, **kwargs)

    def load(
        self, path: str | Path, load_optimizer: bool = True, map_location: Any = None, trust_pickle: bool = False
    ) -> Any:
        """Load the teacher from a checkpoint of its training, or resume a distillation; returns its `infos`."""
        location = self.device if map_location is None else map_location
        loaded = load_checkpoint(Path(path), map_location=location, trust_pickle=trust_pickle)
        if not isinstance(self.alg, TPPO):
            return super().load(path, load_optimizer, map_location, trust_pickle)
        is_distillation = "teacher_checkpoint" in loaded or "student_state_dict" in loaded or self.alg.has_teacher
        teacher = teacher_weights(loaded)
        if teacher is not None:
            self.alg.load_teacher(teacher, path)
        if is_distillation or teacher is not None:
            return super().load(path, load_optimizer, map_location, trust_pickle)
        self.alg.load_teacher(loaded, path)
        return loaded.get("infos")
