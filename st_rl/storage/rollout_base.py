"""`RolloutStorage`: the transitions of one rollout, their returns and mini-batches."""

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from st_rl.storage.compact_buffer import CompactBuffer, find_dtypes
from st_rl.storage.fields import (
    BufferField,
    Shape,
    StepTransition,
    copy_rows,
    extend_mini_batch,
    extend_transition,
    fit_row,
    resolve_shape,
)
from st_rl.storage.fields import MiniBatch as MiniBatchType
from st_rl.storage.returns import generalized_advantages, normalize_advantages
from st_rl.utils.buffer import buffer_from_example, buffer_to
from st_rl.utils.tensors.segments import get_subobs_size
from st_rl.utils.tensors.trajectories import TrajectoryIndex, index_trajectories, pad
from st_rl.utils.tensors.tree import tree_leaves, tree_map

_Chunk = TypeVar("_Chunk")


class RolloutStorage:
    """Stores `T` steps of `N` environments and splits them into mini-batches.

    A subclass declares further data with `fields = (*Parent.fields, BufferField(...))`. Allocation, copying,
    `Transition`, `MiniBatch` and the gathering of mini-batches follow from the declaration.

    Args:
        num_envs: `N`.
        num_transitions_per_env: `T`.
        obs_shape: shape of one actor observation.
        privileged_obs_shape: shape of one critic observation; None, `[None]`, 0 or `[0]`: the critic reads `obs`.
        actions_shape: shape of one action.
        device: device of the buffers.
        **kwargs: `k_shape` for every further shape kind `k` of the fields (`rnd_state_shape`, ...). `obs_dtypes` maps
            components of `obs_segments` and `critic_obs_segments` to the dtype they are stored in: `float16`,
            `bfloat16` or, for values in [0, 1], `uint8`; mini-batches are float32. Other keys are ignored, because
            clients pass the same storage settings to every algorithm.
    """

    fields: ClassVar[tuple[BufferField, ...]] = (
        BufferField("observations", "obs", source="observations", batch="obs", padded=True),
        BufferField(
            "privileged_observations",
            "privileged_obs",
            source="critic_observations",
            batch="critic_obs",
            padded=True,
            optional=True,
            fallback="obs",
        ),
        BufferField("rewards", "scalar", source="rewards"),
        BufferField("actions", "actions", source="actions", batch="actions"),
        BufferField("dones", "scalar", source="dones", dtype=torch.uint8, flag=True),
        BufferField("values", "scalar", source="values", batch="values"),
        BufferField("advantages", "scalar", batch="advantages"),
        BufferField("returns", "scalar", batch="returns"),
        BufferField("actions_log_prob", "scalar", source="actions_log_prob", batch="old_actions_log_prob"),
        BufferField("mu", "actions", source="action_mean", batch="old_mu"),
        BufferField("sigma", "actions", source="action_sigma", batch="old_sigma"),
        BufferField("rnd_state", "rnd_state", source="rnd_state", batch="rnd_state", optional=True),
    )

    Transition: ClassVar[Any] = StepTransition
    MiniBatch: ClassVar[Any] = namedtuple("MiniBatch", MiniBatchType.__annotations__, defaults=[None])
    MiniBatch.__qualname__ = "RolloutStorage.MiniBatch"
    # The named tuple of all gathered fields. It is `MiniBatch`, unless a subclass defines one with more fields and
    # fills those in `get_minibatch_from_indices`.
    _GatheredBatch: ClassVar[Any] = MiniBatch

    observations: torch.Tensor
    privileged_observations: torch.Tensor | None
    rewards: torch.Tensor
    actions: torch.Tensor
    dones: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    actions_log_prob: torch.Tensor
    mu: torch.Tensor
    sigma: torch.Tensor
    rnd_state: torch.Tensor | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Derive `Transition` and `MiniBatch` from the fields, unless the subclass defines them."""
        super().__init_subclass__(**kwargs)
        if "Transition" not in vars(cls):
            cls.Transition = extend_transition(cls.Transition, cls.fields, cls)
        if "MiniBatch" not in vars(cls):
            cls.MiniBatch = extend_mini_batch(cls.MiniBatch, cls.fields, cls)
        gathered = {field.batch for field in cls.fields if field.batch} | {"hidden_states", "masks"}
        is_gathered = gathered == set(cls.MiniBatch._fields)
        cls._GatheredBatch = cls.MiniBatch if is_gathered else extend_mini_batch(cls._GatheredBatch, cls.fields, cls)

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        obs_shape: Shape,
        privileged_obs_shape: Shape,
        actions_shape: Shape,
        device: torch.device | str = "cpu",
        **kwargs: Any,
    ) -> None:
        for name, count in (("num_envs", num_envs), ("num_transitions_per_env", num_transitions_per_env)):
            if count < 1:
                raise ValueError(f"{name} is {count}; a rollout storage needs at least 1")
        self.num_envs = num_envs
        self.num_transitions_per_env = num_transitions_per_env
        self.device = torch.device(device)
        self.step = 0
        # None until the first recurrent hidden state defines the container and the sizes.
        self.saved_hidden_states: Any = None
        # None: recurrent mini-batches hold exactly K trajectories and bool masks. An int, at least `max_trajectories`:
        # K is fixed and `masks` holds positions, so that shapes are static.
        self.trajectory_capacity: int | None = None
        # Whether each call of the recurrent generator distributes the environments at random over the chunks.
        self.shuffles_envs = False
        self._segments = {"obs": kwargs.get("obs_segments"), "privileged_obs": kwargs.get("critic_obs_segments")}
        self._obs_dtypes = find_dtypes(kwargs.get("obs_dtypes") or {}, *self._segments.values())
        shapes = {
            **kwargs,
            "scalar_shape": 1,
            "obs_shape": obs_shape,
            "privileged_obs_shape": privileged_obs_shape,
            "actions_shape": actions_shape,
        }
        # Not inference tensors, even when the storage is built during an inference-mode rollout.
        with torch.inference_mode(False):
            for field in self.fields:
                setattr(self, field.name, self._new_buffer(field, shapes.get(f"{field.shape}_shape")))
        stored = self._buffers()
        self._inputs = [(f, f.source) for f in self.fields if f.source is not None and stored[f.name] is not None]

    def _new_buffer(self, field: BufferField, shape: Shape) -> torch.Tensor | CompactBuffer | None:
        """Allocate zeros `(T, N, *shape)` for one field; None when an optional field has no shape."""
        sizes = resolve_shape(shape)
        if sizes is None:
            if field.optional:
                return None
            raise ValueError(f"{field.shape}_shape is {shape!r}; give the positive size(s) of one {field.name} row")
        leading = (self.num_transitions_per_env, self.num_envs)
        segments = self._segments.get(field.shape)
        # Without critic_obs_segments, obs_segments may be passed for the critic, although its observation differs.
        if self._obs_dtypes and segments is not None and sizes == (get_subobs_size(segments, segments),):
            return CompactBuffer.zeros(leading, segments, self._obs_dtypes, self.device)
        return torch.zeros(*leading, *sizes, dtype=field.dtype, device=self.device)

    def _buffers(self) -> dict[str, Any]:
        """Field name -> buffer `(T, N, ...)`; None for optional data that is not stored."""
        return {field.name: getattr(self, field.name) for field in self.fields}

    @property
    def critic_observations(self) -> torch.Tensor | None:
        """Critic observations `(T, N, *Oc)`; None when the critic reads the actor observations."""
        return self.privileged_observations

    @property
    def num_valid_steps(self) -> int:
        """Number of leading rows that hold data."""
        return self.num_transitions_per_env

    # Storing ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add_transitions(self, transition: StepTransition) -> None:
        """Copy one step of all environments into row `step`."""
        if self.step >= self.num_transitions_per_env:
            raise AssertionError("Rollout buffer overflow")
        buffers, rows, values = vars(self), [], []
        for field, source in self._inputs:
            buffer, value = buffers[field.name], getattr(transition, source)
            if isinstance(buffer, CompactBuffer):
                buffer.write(self.step, fit_row(value, source, buffer.row))
                continue
            row = buffer[self.step]
            if value is None or value.shape != row.shape:
                value = fit_row(value, source, row)
            if field.flag:
                torch.ne(value.to(row.device), 0, out=row)
                continue
            rows.append(row)
            values.append(value)
        copy_rows(rows, values)
        # A feed-forward policy has none.
        if transition.hidden_states is not None or self.saved_hidden_states is not None:
            self._save_hidden_states(transition.hidden_states)
        self.step += 1

    def _save_hidden_states(self, hidden_states: Any) -> None:
        """Copy the states before the step, leaves `(L, N, H)`, into row `step`; zeros if one is missing."""
        states = tree_leaves(hidden_states)
        is_complete = all(state is not None for state in states)
        if self.saved_hidden_states is None:
            if not is_complete:
                return
            with torch.inference_mode(False):
                container = buffer_from_example(hidden_states, (self.num_transitions_per_env,))
                self.saved_hidden_states = buffer_to(container, self.device)
        saved = tree_leaves(self.saved_hidden_states)
        for buffer, state in zip(saved, states if is_complete else [0.0] * len(saved), strict=True):
            buffer[self.step] = state

    def clear(self) -> None:
        """Write the next rollout from row 0 on; the data is kept until it is overwritten."""
        self.step = 0

    # Returns and statistics ---------------------------------------------------------------------------------------

    def compute_returns(self, last_values: torch.Tensor, gamma: float, lam: float) -> None:
        """Fill `returns` and the normalized `advantages`.

        Args:
            last_values: `(N, 1)`, values of the states after the last step.
            gamma: discount.
            lam: GAE decay.
        """
        if last_values.numel() != self.num_envs:
            given = tuple(last_values.shape)
            raise ValueError(f"last_values has shape {given}; give one value per environment, ({self.num_envs}, 1)")
        self._order_in_time()
        steps = self.num_valid_steps
        rewards, values, dones = self.rewards[:steps, :, 0], self.values[:steps, :, 0], self.dones[:steps, :, 0]
        returns, advantages = generalized_advantages(rewards, values, dones, last_values.reshape(-1), gamma, lam)
        self.returns[:steps, :, 0].copy_(returns)
        self.advantages[:steps, :, 0].copy_(normalize_advantages(advantages))

    def get_statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean trajectory length and the mean reward, 0-d float tensors."""
        dones = self._in_time_order(self.dones)
        # The last step of every environment ends a trajectory, whether or not it is done.
        num_trajectories = (dones[:-1] > 0).sum() + self.num_envs
        return dones.numel() / num_trajectories, self.rewards[: self.num_valid_steps].mean()

    def _in_time_order(self, buffer: torch.Tensor) -> torch.Tensor:
        """The valid rows of a buffer, oldest first."""
        return buffer[: self.num_valid_steps]

    def _order_in_time(self) -> None:
        """Rotate all buffers into time order; a no-op here, because rows are written in order."""

    # Mini-batches -------------------------------------------------------------------------------------------------

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[MiniBatchType]:
        """Iterate over feed-forward mini-batches, fields `(M, ...)`, of one permutation of all samples.

        Every epoch yields the same objects: do not modify them in place.
        """
        num_samples = self.num_valid_steps * self.num_envs
        size = _chunk_size(num_samples, num_mini_batches, "samples")
        permutation = torch.randperm(num_samples, device=self.device)[: size * num_mini_batches]

        def gather(samples: torch.Tensor) -> MiniBatchType:
            return self.get_minibatch_from_indices(samples // self.num_envs, samples % self.num_envs)

        return _repeat_epochs(gather, permutation.split(size), num_epochs, cache=not self._obs_dtypes)

    def reccurent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[MiniBatchType]:
        """Iterate over recurrent mini-batches, each a chunk of environments over all steps.

        Chunks are contiguous, or random with `shuffles_envs`.

        `obs` and `critic_obs` are padded trajectories `(T, K, ...)` with `masks (T, K)` and first-step `hidden_states`
        `(L, K, H)`; all other fields are `(T, B, ...)`. With `trajectory_capacity` set, K is that capacity and `masks`
        holds the int64 positions `(T, B)` of the steps. Every epoch yields the same objects: do not modify them in
        place.
        """
        self._order_in_time()
        size = _chunk_size(self.num_envs, num_mini_batches, "environments")
        starts = self._trajectory_starts()
        order: torch.Tensor | None = None
        if self.shuffles_envs:
            order = torch.randperm(self.num_envs, device=self.device)
            starts = starts[:, order]
        if self.trajectory_capacity is None:
            # The only host sync: exact shapes need the counts on the host.
            bounds = [0, *self._trajectory_counts(starts, num_mini_batches).cumsum(0).tolist()]
        else:
            bounds = [chunk * self.trajectory_capacity for chunk in range(num_mini_batches + 1)]

        def gather(chunk: int) -> MiniBatchType:
            steps, columns = slice(0, self.num_valid_steps), slice(chunk * size, (chunk + 1) * size)
            trajectories = slice(bounds[chunk], bounds[chunk + 1])
            envs = columns if order is None else order[columns]
            return self.get_minibatch_from_indices(steps, envs, trajectories, starts[:, columns])

        return _repeat_epochs(gather, range(num_mini_batches), num_epochs, cache=not self._obs_dtypes)

    def recurrent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[MiniBatchType]:
        """Forward to `reccurent_mini_batch_generator`, the documented name that users override."""
        return self.reccurent_mini_batch_generator(num_mini_batches, num_epochs)

    def max_trajectories(self, num_mini_batches: int) -> torch.Tensor:
        """Return the largest number of trajectories in a recurrent mini-batch, as a 0-d int64 tensor on the device."""
        self._order_in_time()
        starts = self._trajectory_starts()
        if self.shuffles_envs:
            # The environments with most trajectories may come together.
            size = _chunk_size(self.num_envs, num_mini_batches, "environments")
            return starts.sum(0).topk(size).values.sum()
        return self._trajectory_counts(starts, num_mini_batches).max()

    def _trajectory_starts(self) -> torch.Tensor:
        """Bool `(T, N)`, True at step 0 and after every done."""
        starts = torch.ones(self.num_valid_steps, self.num_envs, dtype=torch.bool, device=self.device)
        starts[1:] = self.dones[: self.num_valid_steps - 1, :, 0] > 0
        return starts

    @staticmethod
    def _trajectory_counts(starts: torch.Tensor, num_mini_batches: int) -> torch.Tensor:
        """Number of trajectories in each chunk of environments, int64 `(num_mini_batches,)`, from `starts (T, N)`."""
        size = _chunk_size(starts.shape[1], num_mini_batches, "environments")
        return starts.sum(0)[: size * num_mini_batches].view(num_mini_batches, size).sum(1)

    def get_minibatch_from_indices(
        self,
        T_slice: slice | torch.Tensor,
        B_slice: slice | torch.Tensor,
        padded_B_slice: slice | None = None,
        prev_done_mask: torch.Tensor | None = None,
    ) -> Any:
        """Gather one mini-batch; both generators call this method.

        Args:
            T_slice: time steps; a slice, or in a feed-forward mini-batch indices `(M,)` paired with those of `B_slice`.
            B_slice: environments.
            padded_B_slice: None for a feed-forward mini-batch. For a recurrent one, the range of its trajectories among
                those of all environments; its length is the number K of padded trajectories.
            prev_done_mask: bool `(T, B)`, True where a trajectory starts; None reads the stored dones.
        """
        index = samples = None
        if padded_B_slice is not None:
            # A trajectory ends where the next one starts; the last row ends one in any case.
            ends = self.dones[T_slice, B_slice, 0] > 0 if prev_done_mask is None else prev_done_mask.roll(-1, 0)
            start, stop = padded_B_slice.start or 0, padded_B_slice.stop
            index = index_trajectories(ends, None if stop is None else stop - start)
        elif isinstance(T_slice, torch.Tensor) and isinstance(B_slice, torch.Tensor) and T_slice.ndim == 1:
            # One flat index copies whole rows, which is several times faster than indexing two axes.
            samples = T_slice * self.num_envs + B_slice
        buffers = vars(self)
        contents: dict[str, Any] = {"hidden_states": None, "masks": None}
        for field in self.fields:
            if field.batch is None:
                continue
            buffer = buffers[field.name]
            if buffer is None:
                contents[field.batch] = contents[field.fallback] if field.fallback else None
            elif samples is not None:
                contents[field.batch] = buffer.flatten(0, 1).index_select(0, samples)
            elif index is not None and field.padded:
                contents[field.batch] = pad(buffer[T_slice, B_slice], index)
            else:
                contents[field.batch] = buffer[T_slice, B_slice].contiguous()
        if index is not None:
            contents["hidden_states"] = self._first_hidden_states(index, T_slice, B_slice)
            contents["masks"] = index.masks if self.trajectory_capacity is None else index.position
        return self._GatheredBatch(**contents)

    def _first_hidden_states(
        self, index: TrajectoryIndex, steps: slice | torch.Tensor, envs: slice | torch.Tensor
    ) -> Any:
        """Hidden states before the first step of every trajectory, leaves `(L, K, H)`; None when none are stored."""

        def select(leaf: torch.Tensor) -> torch.Tensor:
            by_env = leaf[steps][:, :, envs].transpose(1, 2)
            first = by_env[index.first_step, index.env].transpose(0, 1)
            if self.trajectory_capacity is None:
                return first.contiguous()
            is_real = index.masks[0].view(1, -1, *[1] * (first.ndim - 2))
            return torch.where(is_real, first, 0.0).contiguous()

        return tree_map(select, self.saved_hidden_states)


def _chunk_size(count: int, num_mini_batches: int, what: str) -> int:
    """Return the size of each of `num_mini_batches` equal chunks of `count` items, at least 1."""
    if count < 1:
        raise ValueError(f"the storage holds no {what}; add transitions before asking for mini-batches")
    if not 1 <= num_mini_batches <= count:
        raise ValueError(
            f"{count} {what} cannot be split into num_mini_batches={num_mini_batches} chunks; choose 1 to {count}"
        )
    return count // num_mini_batches


def _repeat_epochs(
    gather: Callable[[_Chunk], MiniBatchType], chunks: Sequence[_Chunk], num_epochs: int, cache: bool = True
) -> Iterator[MiniBatchType]:
    """Yield the mini-batch of every chunk in every epoch; each is gathered once, lazily.

    Without `cache`, each is gathered in every epoch, for rollouts with mini-batches that do not all fit into memory.
    """
    batches: list[MiniBatchType] = []
    for epoch in range(num_epochs):
        if epoch and cache:
            yield from batches
            continue
        for chunk in chunks:
            batch = gather(chunk)
            if cache and num_epochs > 1:
                batches.append(batch)
            yield batch
