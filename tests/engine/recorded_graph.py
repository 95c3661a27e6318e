"""CUDA graphs without a GPU: operations on the CPU, recorded once and replayed on the same tensors."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from st_rl.engine import engine, graph
from st_rl.engine.engine import Plan


class RecordedGraph(TorchDispatchMode):
    """A graph as torch's: a capture changes no tensor that exists before, a replay writes to the same addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.num_replays = 0
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        # Tensors that the capture writes to, with their values before it.
        self._before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    self._before.append((tensor, tensor.clone()))
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, result))
        return result

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        with torch.no_grad():
            for tensor, value in reversed(self._before):
                tensor.copy_(value)

    def replay(self) -> None:
        self.num_replays += 1
        with torch.no_grad():
            for func, args, kwargs, recorded in self._calls:
                result = func(*args, **kwargs)
                aliases = [returned.alias_info for returned in func._schema.returns]
                pairs = [(recorded, result)] if len(aliases) == 1 else zip(recorded or (), result or ())
                for alias, (old, new) in zip(aliases, pairs):
                    if alias is None and isinstance(old, Tensor | list):
                        torch._foreach_copy_(
                            [old] if isinstance(old, Tensor) else old, [new] if isinstance(new, Tensor) else new
                        )

    def pool(self) -> None:
        return None

    def reset(self) -> None:
        self._calls.clear()


def plan_recorded_graphs(monkeypatch: pytest.MonkeyPatch, captures_exchanges: bool = True) -> None:
    """Let every engine on the CPU capture and replay its steps as it does on a GPU."""
    plan = Plan(True, False, "", captures_exchanges)
    monkeypatch.setattr(engine, "make_plan", lambda *args: plan)
    monkeypatch.setattr(graph, "on_stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "stream")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda recorded, **options: recorded)
