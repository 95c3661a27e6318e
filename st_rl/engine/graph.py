"""CUDA graphs of functions on tensors with constant shapes and addresses."""

import gc
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from st_rl.utils.distributed import (
    any_rank,
    captured_exchanges,
    defer_sums,
    has_exchanges,
    sum_over_ranks,
    world_size,
)
from st_rl.utils.log import logger
from st_rl.utils.tensors.tree import tree_leaves, tree_map

# Eager calls before a capture: they load kernels and create the lazy state of optimizers.
WARM_UP_CALLS = 3


class _Capture:
    """One captured call: its static inputs and outputs, and the graphs between them.

    Each of `sums` is a tensor that is summed over all ranks after one graph and before the next.
    """

    def __init__(
        self,
        inputs: list[Tensor],
        output: object,
        graphs: Sequence[torch.cuda.CUDAGraph],
        sums: Sequence[Tensor] = (),
    ):
        self.inputs = inputs
        self.output = output
        self.graphs = graphs
        self.sums = sums
        # The tensors that were last copied into the inputs, with their version counters.
        self._copied: list[tuple[weakref.ref[Tensor], int]] = []

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        if self.inputs and not self._holds(inputs):
            torch._foreach_copy_(self.inputs, list(inputs))  # pyright: ignore[reportPrivateImportUsage]
            self._copied = [(weakref.ref(tensor), _version(tensor)) for tensor in inputs]
        self.graphs[0].replay()
        for tensor, graph in zip(self.sums, self.graphs[1:]):
            sum_over_ranks(tensor)
            graph.replay()
        return self.output

    def _holds(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the static inputs already hold the values of these tensors."""
        return len(self._copied) == len(inputs) and all(
            last() is tensor and 0 <= version == _version(tensor)
            for (last, version), tensor in zip(self._copied, inputs)
        )


def _version(tensor: Tensor) -> int:
    """The version counter of a tensor; -1 for inference tensors, which have none."""
    return -1 if tensor.is_inference() else tensor._version


class GraphedStep:
    """A function of nested tensors, captured once for each signature and slot and replayed afterwards.

    A signature is the shapes of the inputs and a key with all Python values that the function reads. The next call
    overwrites what the function returns. Without `captures_exchanges` there is a graph before and one after each
    exchange between ranks.
    """

    def __init__(self, function: Callable[[Any], Any], stream: torch.cuda.Stream, captures_exchanges: bool = True):
        self._function = function
        self._stream = stream
        self._captures_exchanges = captures_exchanges
        # Captures of one signature by slot; they run one after the other, so they share a memory pool.
        self._captures: dict[int, _Capture] = {}
        self._captured_signature: Hashable = None
        self._calls: dict[Hashable, int] = {}

    def __call__(self, argument: Any, key: Hashable = None, slot: int = 0) -> Any:
        """Run the function on `argument`: eagerly at first, as a graph after the warm-up."""
        leaves = [leaf for leaf in tree_leaves(argument) if isinstance(leaf, Tensor)]
        # A tensor that appears twice is one input.
        distinct = {id(leaf): leaf for leaf in leaves}
        inputs, order = list(distinct.values()), list(distinct)
        shapes = tuple([(tensor.shape, tensor.dtype) for tensor in inputs])
        signature = (key, shapes, tuple([order.index(id(leaf)) for leaf in leaves]))
        if signature == self._captured_signature and slot in self._captures:
            return self._captures[slot].replay(inputs)
        calls = self._calls.get(signature, 0)
        self._calls[signature] = calls + 1
        with on_stream(self._stream):
            if calls < WARM_UP_CALLS:
                return self._function(argument)
            if signature != self._captured_signature:
                # An old value of the key rarely returns: drop its captures.
                self._captures, self._captured_signature = {}, signature
            self._captures[slot] = self._capture(argument, inputs)
            return self._captures[slot].replay(inputs)

    def _capture(self, argument: Any, inputs: Sequence[Tensor]) -> _Capture:
        static = {id(tensor): tensor.clone() for tensor in inputs}
        argument = tree_map(lambda leaf: static.get(id(leaf), leaf), argument)
        pool = next((capture.graphs[0].pool() for capture in self._captures.values()), None)
        graphs, sums = [torch.cuda.CUDAGraph()], []
        with ExitStack() as current:
            current.enter_context(capturing(graphs[0], self._stream, pool))

            def continue_in_next_graph(tensor: Tensor) -> None:
                current.close()
                sums.append(tensor)
                graphs.append(torch.cuda.CUDAGraph())
                current.enter_context(capturing(graphs[-1], self._stream, graphs[0].pool()))

            with nullcontext() if self._captures_exchanges else defer_sums(continue_in_next_graph):
                output = self._function(argument)
        return _Capture(list(static.values()), output, graphs, sums)


class GraphedLoop:
    """A function without arguments on tensors at fixed addresses, captured on its second call, with ranks on its third.

    `host_state` lists (object, attribute) pairs that the function changes on the host; a replay sets them as the
    function does. `during_capture` returns the context that another library needs around a capture.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        stream: torch.cuda.Stream,
        host_state: Sequence[tuple[Any, str]] = (),
        during_capture: Callable[[torch.cuda.Stream], AbstractContextManager[Any]] | None = None,
    ):
        self._function = function
        self._stream = stream
        self._host_state = list(host_state)
        self._during_capture = during_capture or (lambda stream: nullcontext())
        self._capture: _Capture | None = None
        self._key: Hashable = None
        self._host_values: list[Any] = []
        self._calls = 0

    def __call__(self, key: Hashable = None) -> Any:
        """Run the function once; a new `key`, the Python values that it reads, captures it again."""
        if self._capture is not None and key == self._key:
            for (owner, name), value in zip(self._host_state, self._host_values):
                setattr(owner, name, value)
            return self._capture.replay(())
        with on_stream(self._stream):
            # With several ranks the normalizers take another branch, which may be compiled, from the second call on.
            self._calls += 1
            if self._calls <= (2 if has_exchanges() else 1):
                return self._function()
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, self._stream), self._during_capture(self._stream):
                output = self._function()
            self._key, self._capture = key, _Capture([], output, [graph])
            self._host_values = [getattr(owner, name) for owner, name in self._host_state]
            return self._capture.replay(())

    def discard_graph(self) -> None:
        """Run the function eagerly once, then capture it again."""
        self._capture, self._calls = None, 0


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None) -> Iterator[None]:
    """Capture the work on a stream into a graph.

    Garbage collection is off meanwhile: memory or graphs that it frees during a capture make the capture fail.
    """
    options: dict[str, Any] = {}
    if has_exchanges():
        captured_exchanges.add(graph)
        # The threads of NCCL and torch that watch exchanges call CUDA at any time.
        options["capture_error_mode"] = "thread_local"
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, **options):
            yield
    finally:
        if was_enabled:
            gc.enable()


def can_capture_exchanges(device: torch.device | str) -> bool:
    """Whether a captured step on this device may contain its exchanges between ranks.

    With NCCL a trial decides. With several ranks, call it on all.
    """
    device = torch.device(device)
    if device.type != "cuda" or not has_exchanges():
        return True
    return dist.get_backend() == "nccl" and _try_to_capture_exchange(device)


@cache
def _try_to_capture_exchange(device: torch.device) -> bool:
    """Capture a sum over all ranks, replay it and check the result; logs why it fails."""
    failure, total = "", torch.empty(1024, device=device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    # Connects the ranks, if they are not yet.
    any_rank(False, device)
    with on_stream(stream):
        try:
            with capturing(graph, stream):
                dist.all_reduce(total.fill_(1.0))
        except RuntimeError as error:
            failure = str(error).split("\n")[0]
        # A rank that replays would wait for one that cannot.
        if not any_rank(bool(failure), device):
            graph.replay()
            if not bool((total == world_size()).all()):
                failure = f"the sum of 1 over {world_size()} ranks is {float(total.mean())}"
    if not any_rank(bool(failure), device):
        return True
    # A failed capture leaves the random generator in the state of a capture; the next one that succeeds ends that.
    with suppress(RuntimeError), capturing(torch.cuda.CUDAGraph(), stream):
        total.zero_()
    reason = failure or "it fails on another rank"
    logger.warning(f"CUDA graphs cannot capture exchanges through NCCL, which now run between graphs: {reason}")
    return False


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on another stream, after the work queued on the current one and before what follows there."""
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)
