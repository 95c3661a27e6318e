"""MuJoCo Warp on a GPU."""

import contextlib
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from st_rl.sim.backends.base import Backend, PhysicsCfg
from st_rl.sim.backends.kernel_loading import load_kernels
from st_rl.sim.require import require_mujoco
from st_rl.utils.log import logger

# Contacts that one geometry makes with the ground at most, by kind of shape; others count as one.
_CONTACTS = {"box": 4, "capsule": 2, "cylinder": 4, "mesh": 4}
# Model fields that MuJoCo recomputes from masses; they differ between robots as soon as masses do.
_MASS_CONSTANTS = ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0")
# What MuJoCo Warp may note of a robot when `max_contacts` is too small for it.
_NO_ROOM = ("NEFC", "NJMAX_NNZ", "BROADPHASE", "NARROWPHASE", "CONTACT_MATCH")
# Beyond this MuJoCo itself calls a position or velocity bad.
_LARGEST = 1.0e10


def require_warp() -> tuple[ModuleType, ModuleType]:
    """The modules `warp` and `mujoco_warp`, or an ImportError that names the extra to install."""
    try:
        import mujoco_warp  # pyright: ignore[reportMissingImports]
        import warp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError('simulation on a GPU needs MuJoCo Warp: pip install "st_rl[warp]"') from error
    warp.config.quiet = True  # pyright: ignore[reportAttributeAccessIssue]
    return warp, mujoco_warp


class WarpBackend(Backend):
    """Steps robots with MuJoCo Warp; torch looks at its arrays without a copy and works on the same stream.

    Nothing waits for the device, so a whole rollout can be captured as one graph inside `during_capture`.
    """

    def __init__(self, model: Any, num_envs: int, physics: PhysicsCfg, device: torch.device | str = "cuda") -> None:
        """Create the robots in the model's default pose."""
        super().__init__(model, num_envs, physics, device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device '{device}': torch sees no GPU here; use 'cpu', or ask st-rl doctor why")
        self._warp, self._mjwarp = require_warp()
        mujoco = require_mujoco()
        self._streams: dict[int, Any] = {}
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream():
            data = mujoco.MjData(self.model)
            mujoco.mj_forward(self.model, data)
            self._model = self._mjwarp.put_model(self.model)
            # Its messages come from the device, in the middle of a graph, and double the time of a step.
            self._model.opt.warn_overflow = 0
            contacts = self._contacts = physics.max_contacts or largest_number_of_contacts(self.model)
            self._other_rows = int(self.model.jnt_limited.sum()) + int((self.model.dof_frictionloss > 0).sum())
            rows = 4 * contacts + self._other_rows
            # Room for this many contacts of one sensor is cleared and searched in every substep: no more than needed.
            self._model.opt.contact_sensor_maxmatch = contacts

            def put_data() -> Any:
                return self._mjwarp.put_data(self.model, data, nworld=num_envs, nconmax=contacts, njmax=rows)

            self._load_kernels(put_data)
            self._data = put_data()
        names = ("qpos", "qvel", "ctrl", "sensordata", "qfrc_actuator", "qacc_warmstart", "time", "qfrc_applied")
        self._arrays = {name: self._view(self._data, name) for name in names}
        if self.model.na:
            self._arrays["act"] = self._view(self._data, "act")
        self._arrays["sensordata"].zero_()
        self._arrays["qfrc_actuator"].zero_()
        self._fields: dict[str, torch.Tensor] = {}
        self._constants_follow = False
        self._has_warned = False

    def _load_kernels(self, put_data: Callable[[], Any]) -> None:
        """Compile what a step launches before the first one, which would do it one after the other."""
        # Robots of its own: a step copies some of their numbers even if it launches nothing.
        rehearsed = put_data()
        try:
            load_kernels(self._warp, str(self.device), lambda: self._mjwarp.step(self._model, rehearsed))
        except Exception as error:
            # Other versions of Warp may do it in another way; a step compiles what it lacks.
            logger.warning(f"MuJoCo Warp's kernels could not be loaded at once ({error}); the first step takes longer")

    def _view(self, owner: Any, name: str) -> torch.Tensor:
        """An array of MuJoCo Warp as a tensor on the same memory."""
        return self._warp.to_torch(getattr(owner, name))

    @property
    def qpos(self) -> torch.Tensor:
        """`(N, nq)` positions."""
        return self._arrays["qpos"]

    @property
    def qvel(self) -> torch.Tensor:
        """`(N, nv)` velocities."""
        return self._arrays["qvel"]

    @property
    def sensordata(self) -> torch.Tensor:
        """`(N, nsensordata)` sensor readings."""
        return self._arrays["sensordata"]

    @property
    def joint_force(self) -> torch.Tensor:
        """`(N, nv)` generalised force of the actuators."""
        return self._arrays["qfrc_actuator"]

    def set_control(self, control: torch.Tensor) -> None:
        """Set the control `(N, nu)` that the following steps apply."""
        self._arrays["ctrl"].copy_(control)

    def step(self, num_substeps: int = 1) -> None:
        """Advance every robot by `num_substeps` substeps on torch's present stream."""
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream():
            for _ in range(num_substeps):
                self._mjwarp.step(self._model, self._data)

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Start the robots of `mask` `(N,)` afresh; a masked write, so others keep every bit."""
        column = mask[:, None]
        for name, value in self._arrays.items():
            fresh = {"qpos": qpos, "qvel": qvel}.get(name)
            if fresh is None:
                value.masked_fill_(mask if value.dim() == 1 else column, 0.0)
            else:
                value.copy_(torch.where(column, fresh, value))

    def add_velocity(self, delta: torch.Tensor, mask: torch.Tensor, column: int = 0) -> None:
        """Add `delta` `(N, k)` to `k` columns of `qvel`, from `column` on, for the robots of `mask` `(N,)`."""
        self.qvel[:, column : column + delta.shape[1]] += delta * mask[:, None]

    def expand(self, field: str) -> torch.Tensor:
        """Give a field of the model a value per robot and return it live, `(N, ...)`; not inside a captured graph."""
        if field not in self._fields:
            array = getattr(self._model, field)
            shared = self._warp.to_torch(array)[:1]
            values = shared.repeat(self.num_envs, *[1] * (shared.dim() - 1)).contiguous()
            setattr(self._model, field, self._warp.from_torch(values, dtype=array.dtype))
            self._fields[field] = values
        return self._fields[field]

    def refresh_constants(self) -> None:
        """Make constants follow fields that were written after `expand`."""
        for field in _MASS_CONSTANTS:
            self.expand(field)
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream():
            self._mjwarp.set_const(self._model, self._data)
        self._constants_follow = True

    def check_diverged(self) -> torch.Tensor:
        """`(N,)` bool: a position or velocity is not finite or beyond what MuJoCo accepts."""
        size = torch.cat([self.qpos, self.qvel], dim=1).abs().amax(dim=1)
        # NaN compares false, so a robot is sound only if its numbers are there and small.
        return ~(size < _LARGEST)

    @contextlib.contextmanager
    def during_capture(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Let Warp know that torch is capturing a graph on `stream`."""
        warp_stream = self._warp_stream(stream)
        self._warp.capture_begin(stream=warp_stream, external=True)
        try:
            yield
        finally:
            self._warp.capture_end(stream=warp_stream)

    def _warp_stream(self, stream: torch.cuda.Stream) -> Any:
        """Warp's handle of a stream of torch, one for each."""
        if stream.cuda_stream not in self._streams:
            self._streams[stream.cuda_stream] = self._warp.stream_from_torch(stream)
        return self._streams[stream.cuda_stream]

    def _on_torch_stream(self) -> Any:
        """Make Warp launch on torch's present stream; everything is in order there, so nothing has to wait."""
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        present = self._warp_stream(torch.cuda.current_stream(self.device))
        return self._warp.ScopedStream(present, sync_enter=False, sync_exit=False)

    def _warn_of_dropped_contacts(self) -> None:
        """Say once that robots touched more than there was room for; waits for the device.

        MuJoCo Warp notes it in every substep, at no cost, and keeps the note.
        """
        kinds = getattr(self._mjwarp, "OverflowType", None)  # not in older versions, which note nothing
        if self._has_warned or kinds is None:
            return
        lacking = sum(int(getattr(kinds, name)) for name in _NO_ROOM)
        count = int((self._view(self._data, "overflow") & lacking).ne(0).sum())
        if count == 0:
            return
        self._has_warned = True
        # How much the newest substep would have needed; rows are each robot's own, the rest is shared by all.
        rows = (int(self._view(self._data, "nefc").max()) - self._other_rows) / 4
        shared = max(int(self._view(self._data, name)) for name in ("nacon", "ncollision")) / self.num_envs
        needed = max(math.ceil(rows), math.ceil(shared), self._contacts + 1)
        logger.warning(
            f"the GPU had no room for all contacts of {count} of {self.num_envs} robots and dropped some: raise "
            f"physics.max_contacts, now {self._contacts} for each robot, to {needed} at least"
        )

    def state_dict(self) -> dict[str, Any]:
        """State of every robot, last readings and model fields per robot."""
        self._warn_of_dropped_contacts()
        return {
            "arrays": {name: value.clone() for name, value in self._arrays.items()},
            "fields": {name: value.clone() for name, value in self._fields.items()},
            "constants_follow": self._constants_follow,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; ValueError when it belongs to another robot, number of robots or backend."""
        shape = state.get("arrays", {"qpos": torch.empty(0)})["qpos"].shape
        if shape != self.qpos.shape:
            raise ValueError(
                f"the saved simulation has positions of shape {tuple(shape)}, this one {tuple(self.qpos.shape)}: "
                "load it with the same robot, num_envs and device"
            )
        for name, value in state["arrays"].items():
            self._arrays[name].copy_(value)
        for name, value in state["fields"].items():
            self.expand(name).copy_(value)
        if state["constants_follow"]:
            self.refresh_constants()


def largest_number_of_contacts(model: Any) -> int:
    """How many contacts one robot can have with the ground at once, with some to spare."""
    mujoco = require_mujoco()
    count = 0
    for geom in range(model.ngeom):
        moves = model.body_weldid[model.geom_bodyid[geom]] != 0
        if moves and (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            kind = mujoco.mjtGeom(model.geom_type[geom]).name.removeprefix("mjGEOM_").lower()
            count += _CONTACTS.get(kind, 1)
    return count + 4
