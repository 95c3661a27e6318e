"""CUDA graphs of functions whose tensors keep their shapes and places."""

import gc
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

# Calls that run as they are before one is captured: they load kernels and make the state that optimisers make late.
WARM_UP_CALLS = 3


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of nested tuples, lists and dictionaries, each once, in order of first appearance."""
    found: dict[int, Tensor] = {}

    def visit(item: Any) -> None:
        if isinstance(item, Tensor):
            found.setdefault(id(item), item)
        elif isinstance(item, (tuple, list)):
            for part in item:
                visit(part)
        elif isinstance(item, dict):
            for part in item.values():
                visit(part)

    visit(value)
    return list(found.values())


def replaced(value: Any, twins: dict[int, Tensor]) -> Any:
    """The same nested value with every tensor exchanged for its twin, by identity."""
    if isinstance(value, Tensor):
        return twins[id(value)]
    if isinstance(value, tuple):
        parts = [replaced(item, twins) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [replaced(item, twins) for item in value]
    if isinstance(value, dict):
        return {key: replaced(item, twins) for key, item in value.items()}
    return value


class _Capture:
    """One captured call: its fixed inputs, its fixed outputs and the graph between them."""

    def __init__(self, inputs: list[Tensor], output: Any, graph: torch.cuda.CUDAGraph):
        self.inputs = inputs
        self.output = output
        self.graph = graph
        # The tensors that were copied into the inputs last, and how often they had been changed until then.
        self._copied: list[tuple[weakref.ref[Tensor], int]] = []

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        if self.inputs and not self._holds(inputs):
            torch._foreach_copy_(self.inputs, list(inputs))  # pyright: ignore[reportPrivateImportUsage]
            self._copied = [(weakref.ref(tensor), changes(tensor)) for tensor in inputs]
        self.graph.replay()
        return self.output

    def _holds(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the fixed inputs already hold the values of these tensors."""
        if len(self._copied) != len(inputs):
            return False
        return all(
            last() is tensor and 0 <= count == changes(tensor) for (last, count), tensor in zip(self._copied, inputs)
        )


def changes(tensor: Tensor) -> int:
    """How often a tensor has been written to; -1 where nobody counts."""
    return -1 if tensor.is_inference() else tensor._version


class GraphedStep:
    """A function of nested tensors that is captured once for every signature and turn, and replayed afterwards.

    A signature is the shapes of the inputs and a key that names every Python value the function depends on. What the
    function returns is overwritten by its next call.
    """

    def __init__(self, function: Callable[[Any], Any], stream: torch.cuda.Stream):
        self._function = function
        self._stream = stream
        # Of one signature, by turn; calls are made one after the other, so they may share their memory.
        self._captures: dict[int, _Capture] = {}
        self._captured_signature: Hashable = None
        self._calls: dict[Hashable, int] = {}

    def __call__(self, argument: Any, key: Hashable = None, turn: int = 0) -> Any:
        """Run the function on `argument`; as it is at first, as a graph from then on."""
        inputs = tensors_in(argument)
        places = [id(tensor) for tensor in _all_tensors(argument)]
        signature = (
            key,
            tuple((tensor.shape, tensor.dtype) for tensor in inputs),
            tuple(places.index(place) for place in places),
        )
        if signature == self._captured_signature and turn in self._captures:
            return self._captures[turn].replay(inputs)
        calls = self._calls.get(signature, 0)
        self._calls[signature] = calls + 1
        with on_stream(self._stream):
            if calls < WARM_UP_CALLS:
                return self._function(argument)
            if signature != self._captured_signature:
                # Another value of the key will hardly come back: drop what was captured for it.
                self._captures, self._captured_signature = {}, signature
            self._captures[turn] = self._captured(argument, inputs)
            return self._captures[turn].replay(inputs)

    def _captured(self, argument: Any, inputs: Sequence[Tensor]) -> _Capture:
        fixed = [tensor.clone() for tensor in inputs]
        twins = {id(tensor): twin for tensor, twin in zip(inputs, fixed)}
        pool = next((capture.graph.pool() for capture in self._captures.values()), None)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._stream, pool):
            output = self._function(replaced(argument, twins))
        return _Capture(fixed, output, graph)


def _all_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _all_tensors(item)
    elif isinstance(value, dict):
        yield from _all_tensors(list(value.values()))


class GraphedLoop:
    """A function without arguments that works on tensors in fixed places, captured on its second call.

    `host_state` lists (object, attribute) pairs that the function changes on the host; a replay sets them as the
    function would have. `during_capture` gives what another library needs around a capture.
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
        self._during_capture = during_capture
        self._capture: _Capture | None = None
        self._key: Hashable = None
        self._host_values: list[Any] = []
        self._warm = False

    def __call__(self, key: Hashable = None) -> Any:
        """Run the function once; a new `key`, the Python values it depends on, captures it anew."""
        if self._capture is not None and key == self._key:
            for (owner, name), value in zip(self._host_state, self._host_values):
                setattr(owner, name, value)
            return self._capture.replay(())
        with on_stream(self._stream):
            if not self._warm:
                self._warm = True
                return self._function()
            graph = torch.cuda.CUDAGraph()
            with ExitStack() as stack:
                stack.enter_context(capturing(graph, self._stream))
                if self._during_capture is not None:
                    stack.enter_context(self._during_capture(self._stream))
                output = self._function()
            self._key, self._capture = key, _Capture([], output, graph)
            self._host_values = [getattr(owner, name) for owner, name in self._host_state]
            return self._capture.replay(())

    def discard_graphs(self) -> None:
        """Run the function as it is once more, then capture it anew."""
        self._capture, self._warm = None, False


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None) -> Iterator[None]:
    """Capture into a graph what is queued on a stream.

    Python collects no garbage meanwhile: memory and graphs of a simulation that is no longer needed, given back in the
    middle, would spoil the capture.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            yield
    finally:
        if was_collecting:
            gc.enable()


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on another stream, after what was queued on the present one and before what comes next there."""
    present = torch.cuda.current_stream(stream.device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        yield
    present.wait_stream(stream)
