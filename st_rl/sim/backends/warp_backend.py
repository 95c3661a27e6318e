"""MuJoCo Warp on a GPU."""

import contextlib
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from st_rl.sim.backends.base import Backend, PhysicsCfg
from st_rl.sim.backends.contact_readings import ContactReadings, can_read
from st_rl.sim.backends.kernel_loading import load_kernels
from st_rl.sim.backends.lean_launches import BLOCK_DIM, MAX_UNROLLED, find_idle_kernels, lean_launches
from st_rl.sim.require import MjModel, mujoco
from st_rl.utils.log import logger

# Maximum number of contacts of a geom with the ground, by type; one for other types.
_MAX_CONTACTS = {"box": 4, "capsule": 2, "cylinder": 4, "mesh": 4}
# Model fields that MuJoCo computes from masses, so that they differ between robots if masses do.
_MASS_CONSTANTS = ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0")
# Overflow flags of MuJoCo Warp that a larger `max_contacts` avoids.
_CONTACT_OVERFLOWS = ("NEFC", "NJMAX_NNZ", "BROADPHASE", "NARROWPHASE", "CONTACT_MATCH")
# Above this MuJoCo treats a position or velocity as diverged.
_MAX_STATE = 1.0e10


def require_warp() -> tuple[ModuleType, ModuleType]:
    """The modules `warp` and `mujoco_warp`, or an ImportError that names the extra to install."""
    try:
        import mujoco_warp  # pyright: ignore[reportMissingImports]
        import warp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError('simulation on a GPU needs MuJoCo Warp: pip install "st_rl[warp]"') from error
    warp.config.log_level = warp.LOG_WARNING  # pyright: ignore[reportAttributeAccessIssue]
    return warp, mujoco_warp


class WarpBackend(Backend):
    """Steps robots with MuJoCo Warp; torch shares its arrays and its stream.

    There are no host syncs, so a whole rollout can be captured as one graph inside `during_capture`.
    """

    def __init__(self, model: MjModel, num_envs: int, physics: PhysicsCfg, device: torch.device | str = "cuda") -> None:
        super().__init__(model, num_envs, physics, device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device '{device}': torch sees no GPU here; use 'cpu', or run st-rl doctor")
        self._warp, self._mjwarp = require_warp()
        self._streams: dict[int, Any] = {}
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream():
            data = mujoco.MjData(self.model)
            mujoco.mj_forward(self.model, data)
            self._model = self._mjwarp.put_model(self.model)
            # It prints from the device, inside a graph, which doubles the time of a step.
            self._model.opt.warn_overflow = 0
            # Films are rendered by MuJoCo, so only sensors read poses of cameras, and nothing those of lights.
            self._model.nlight = 0
            if not _has_camera_sensors(self.model):
                self._model.ncam = 0
            contacts = self._contacts = physics.max_contacts or max_ground_contacts(self.model)
            self._other_rows = int(self.model.jnt_limited.sum()) + int((self.model.dof_frictionloss > 0).sum())
            rows = 4 * contacts + self._other_rows
            # MuJoCo Warp clears and searches this many contacts per sensor.
            self._model.opt.contact_sensor_maxmatch = contacts
            # The solver starts from the last acceleration, so the unconstrained one is not needed.
            self._model.opt.run_qacc_smooth = False
            self._find_idle_kernels()
            self._unrolled = physics.iterations if physics.iterations <= MAX_UNROLLED else None
            self._model.opt.graph_conditional = self._unrolled is None
            reads_contacts = can_read(self.model)
            if reads_contacts:
                self._model.sensor_contact_acc_adr = self._warp.empty(0, dtype=int)

            def put_data() -> Any:
                return self._mjwarp.put_data(self.model, data, nworld=num_envs, nconmax=contacts, njmax=rows)

            self._load_kernels(put_data)
            self._data = put_data()
            self._contact_readings = None
            if reads_contacts:
                self._contact_readings = ContactReadings(self._warp, self._mjwarp, self.model, self._data)
        names = ("qpos", "qvel", "ctrl", "sensordata", "qfrc_actuator", "qacc_warmstart", "time", "qfrc_applied")
        self._arrays = {name: self._view(self._data, name) for name in names}
        if self.model.na:
            self._arrays["act"] = self._view(self._data, "act")
        self._arrays["sensordata"].zero_()
        self._arrays["qfrc_actuator"].zero_()
        self.qpos, self.qvel = self._arrays["qpos"], self._arrays["qvel"]
        self.sensordata, self.joint_force = self._arrays["sensordata"], self._arrays["qfrc_actuator"]
        self._has_warned = False

    def _load_kernels(self, put_data: Callable[[], Any]) -> None:
        """Compile the kernels of a step in parallel; the first step would compile them one by one."""
        # Separate data: a step copies parts of it even if it launches nothing.
        scratch = put_data()

        def run_step() -> None:
            with self._lean_launches(self._idle_kernels[True], read_sensors=True):
                self._mjwarp.step(self._model, scratch)

        try:
            load_kernels(self._warp, str(self.device), run_step)
        except Exception as error:
            # Depends on the version of Warp; a step compiles missing kernels itself.
            logger.warning(f"could not precompile MuJoCo Warp kernels ({error}); the first step will be slow")

    def _view(self, owner: object, name: str) -> torch.Tensor:
        """An array of MuJoCo Warp as a tensor that shares its memory."""
        return self._warp.to_torch(getattr(owner, name))

    def set_control(self, control: torch.Tensor) -> None:
        """Set the control `(N, nu)` of the following steps."""
        self._arrays["ctrl"].copy_(control)

    def step(self, num_substeps: int = 1, read_sensors: bool = True) -> None:
        """Advance all robots by `num_substeps` physics steps on torch's current stream; the last one reads sensors."""
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream():
            for substep in range(num_substeps):
                self._substep(read_sensors and substep == num_substeps - 1)

    def _substep(self, read_sensors: bool) -> None:
        options = self._model.opt
        flags = options.disableflags
        if not read_sensors:
            options.disableflags = flags | int(self._mjwarp.DisableBit.SENSOR)
        with self._lean_launches(self._idle_kernels[read_sensors], read_sensors):
            self._mjwarp.step(self._model, self._data)
            options.disableflags = flags
            if read_sensors and self._contact_readings is not None:
                self._contact_readings.launch(self._model)

    def _lean_launches(self, idle: frozenset[str], read_sensors: bool) -> contextlib.AbstractContextManager[None]:
        block_dim = BLOCK_DIM if self.device.type == "cuda" else None
        return lean_launches(self._warp, idle, self._unrolled, read_sensors, block_dim)

    def _find_idle_kernels(self) -> None:
        self._idle_kernels = [find_idle_kernels(self.model, self._fields, read) for read in (False, True)]

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the robots of `mask` `(N,)`; other robots stay bitwise unchanged."""
        column = mask[:, None]
        for name, value in self._arrays.items():
            initial = {"qpos": qpos, "qvel": qvel}.get(name)
            if initial is None:
                value.masked_fill_(mask if value.dim() == 1 else column, 0.0)
            else:
                value.copy_(torch.where(column, initial, value))

    def add_velocity(self, delta: torch.Tensor, mask: torch.Tensor, column: int = 0) -> None:
        """Add `delta` `(N, k)` to `k` columns of `qvel`, starting at `column`, for the robots of `mask` `(N,)`."""
        self.qvel[:, column : column + delta.shape[1]] += delta * mask[:, None]

    def expand(self, field: str) -> torch.Tensor:
        """Give a model field one value per robot and return it, `(N, ...)`; not inside a graph capture."""
        if field not in self._fields:
            array = getattr(self._model, field)
            shared = self._warp.to_torch(array)[:1]
            values = shared.repeat(self.num_envs, *[1] * (shared.dim() - 1)).contiguous()
            setattr(self._model, field, self._warp.from_torch(values, dtype=array.dtype))
            self._fields[field] = values
            self._find_idle_kernels()
        return self._fields[field]

    def refresh_constants(self) -> None:
        """Recompute the constants that depend on expanded fields."""
        for field in _MASS_CONSTANTS:
            self.expand(field)
        launches = self._lean_launches(frozenset(), read_sensors=True)
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream(), launches:
            self._mjwarp.set_const(self._model, self._data)
        self._has_own_constants = True

    def check_diverged(self) -> torch.Tensor:
        """`(N,)` bool: a position or velocity is not finite or larger than MuJoCo accepts."""
        size = torch.cat([self.qpos, self.qvel], dim=1).abs().amax(dim=1)
        # Comparisons with NaN are False, so NaN counts as diverged.
        return ~(size < _MAX_STATE)

    @contextlib.contextmanager
    def during_capture(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Tell Warp that torch captures a graph on `stream`."""
        warp_stream = self._warp_stream(stream)
        self._warp.capture_begin(stream=warp_stream, external=True)
        try:
            yield
        finally:
            self._warp.capture_end(stream=warp_stream)

    def _warp_stream(self, stream: torch.cuda.Stream) -> Any:
        """The Warp stream of a torch stream, created once."""
        if stream.cuda_stream not in self._streams:
            self._streams[stream.cuda_stream] = self._warp.stream_from_torch(stream)
        return self._streams[stream.cuda_stream]

    def _on_torch_stream(self) -> Any:
        """Make Warp launch on torch's current stream, which keeps the order without synchronization."""
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        current = self._warp_stream(torch.cuda.current_stream(self.device))
        return self._warp.ScopedStream(current, sync_enter=False, sync_exit=False)

    def _warn_of_dropped_contacts(self) -> None:
        """Warn once if contacts overflowed; synchronizes with the device.

        MuJoCo Warp sets the overflow flags in every substep and keeps them.
        """
        kinds = getattr(self._mjwarp, "OverflowType", None)  # not in older versions
        if self._has_warned or kinds is None:
            return
        lacking = sum(int(getattr(kinds, name)) for name in _CONTACT_OVERFLOWS)
        count = int((self._view(self._data, "overflow") & lacking).ne(0).sum())
        if count == 0:
            return
        self._has_warned = True
        # What the last substep needed: rows are per robot, the other counts are sums over all robots.
        rows = (int(self._view(self._data, "nefc").max()) - self._other_rows) / 4
        shared = max(int(self._view(self._data, name)) for name in ("nacon", "ncollision")) / self.num_envs
        needed = max(math.ceil(rows), math.ceil(shared), self._contacts + 1)
        logger.warning(
            f"contacts of {count} of {self.num_envs} robots overflowed and were dropped: raise physics.max_contacts "
            f"from {self._contacts} to at least {needed}"
        )

    def state_dict(self) -> dict[str, Any]:
        """State, last readings and expanded model fields of all robots."""
        self._warn_of_dropped_contacts()
        return {
            "arrays": {name: value.clone() for name, value in self._arrays.items()},
            **self._field_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; ValueError if it belongs to another robot, number of robots or backend."""
        shape = state.get("arrays", {"qpos": torch.empty(0)})["qpos"].shape
        if shape != self.qpos.shape:
            raise ValueError(
                f"the saved simulation has positions of shape {tuple(shape)}, this one {tuple(self.qpos.shape)}: "
                "load it with the same robot, num_envs and device"
            )
        for name, value in state["arrays"].items():
            self._arrays[name].copy_(value)
        self._load_field_state(state)


def _has_camera_sensors(model: MjModel) -> bool:
    camera = mujoco.mjtObj.mjOBJ_CAMERA
    return bool((model.sensor_objtype == camera).any() or (model.sensor_reftype == camera).any())


def max_ground_contacts(model: MjModel) -> int:
    """Upper bound of the contacts of one robot with the ground, with a margin."""
    count = 0
    for geom in range(model.ngeom):
        moves = model.body_weldid[model.geom_bodyid[geom]] != 0
        if moves and (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            kind = mujoco.mjtGeom(model.geom_type[geom]).name.removeprefix("mjGEOM_").lower()
            count += _MAX_CONTACTS.get(kind, 1)
    return count + 4
