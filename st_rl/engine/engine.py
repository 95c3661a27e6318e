"""Runs the hot functions of a training eagerly, compiled, or as CUDA graphs."""

import shutil
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from st_rl.engine.graph import GraphedLoop, GraphedStep
from st_rl.utils.log import logger

ENGINES = ("auto", "eager", "compile", "graph")
# How often one function may be recompiled in a process, for other networks or sizes.
RECOMPILE_LIMIT = 256
# Iterations after which compilation has paid for itself: half a minute of it on a CPU saves some tens of milliseconds
# per iteration. On an H200 with 4,096 quadrupeds 24 s of it saved 18 ms per iteration.
COMPILE_PAYS_AFTER = {"cpu": 1000, "cuda": 2000}
# The same in seconds of training, for a training with a time limit.
COMPILE_PAYS_AFTER_S = {"cpu": 300.0, "cuda": 200.0}

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


class Plan(NamedTuple):
    """Whether an engine captures CUDA graphs and compiles, and why."""

    graphs: bool
    compiles: bool
    reason: str
    captures_exchanges: bool = True
    """Whether graphs may contain exchanges between ranks; else these run between two graphs."""


def make_plan(
    setting: str,
    device: torch.device,
    iterations: int | None,
    seconds: float | None = None,
    captures_exchanges: bool = True,
) -> Plan:
    """Choose graphs and compilation for a device and a training that ends with the first limit (None: no limit)."""
    if setting not in ENGINES:
        raise ValueError(f"unknown engine '{setting}'; use one of: {', '.join(ENGINES)}")
    cuda = device.type == "cuda"
    if setting == "graph" and not cuda:
        raise ValueError(f"engine 'graph' needs a CUDA device, not '{device}'; use 'auto', 'eager' or 'compile'")
    if setting != "auto":
        return Plan(cuda and setting != "eager", setting == "compile", "as configured", captures_exchanges)
    if not cuda and shutil.which("g++") is None and shutil.which("clang++") is None:
        return Plan(False, False, "no C++ compiler for torch.compile")
    kind, unit = "cuda" if cuda else "cpu", "iterations" if seconds is None else "minutes"
    is_known = iterations is not None or seconds is not None
    is_short = (iterations is not None and iterations < COMPILE_PAYS_AFTER[kind]) or (
        seconds is not None and seconds < COMPILE_PAYS_AFTER_S[kind]
    )
    pays = is_known and not is_short
    reason = f"{'enough' if pays else 'too few'} {unit} for compilation to pay off"
    return Plan(cuda, pays, reason, captures_exchanges)


def compiler_options(device: torch.device, casts_weights: bool = False) -> dict[str, Any]:
    """The inductor options of a device; `casts_weights` says that the function casts weights, as autocast does."""
    # Sample the same random numbers as eager code.
    options: dict[str, Any] = {"fallback_random": True}
    if device.type == "cpu":
        # Dynamo's guards have checked the shapes; to assert them again takes as long as a small kernel.
        options["size_asserts"] = False
        # Call the kernels from C++: from Python the call takes longer than many of the kernels.
        options["cpp_wrapper"] = True
    if device.type == "cuda" and casts_weights:
        # Cast all weights, biases and gradients in few kernels: a launch takes longer than one cast.
        options["combo_kernels"] = True
    return options


class Engine:
    """Compiles and captures the functions that an algorithm and a runner call in every iteration."""

    def __init__(
        self,
        setting: str = "eager",
        device: torch.device | str = "cpu",
        iterations: int | None = None,
        seconds: float | None = None,
        compile_backend: str | Callable[..., Any] = "inductor",
        captures_exchanges: bool = True,
    ):
        self.device = torch.device(device)
        self.plan = make_plan(setting, self.device, iterations, seconds, captures_exchanges)
        self._stream = torch.cuda.Stream(self.device) if self.plan.graphs else None
        self._compile_backend = compile_backend
        self._capacity = 0
        # Functions that could not be compiled: qualified name -> reason.
        self.eager_fallbacks: dict[str, str] = {}
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._steps: dict[Callable[..., Any], GraphedStep] = {}
        self._loops: list[GraphedLoop] = []

    def matches(self, setting: str, iterations: int | None, seconds: float | None = None) -> bool:
        """Whether a new engine with these arguments would have the same plan."""
        return make_plan(setting, self.device, iterations, seconds, self.plan.captures_exchanges) == self.plan

    def describe(self) -> str:
        """The plan and its reason in one line for the log."""
        code = "compiled losses, acting and task" if self.plan.compiles else "eager losses, acting and task"
        steps = "CUDA graphs" if self.plan.graphs else "no CUDA graphs"
        exchanges = "" if self.plan.captures_exchanges else ", exchanges between graphs"
        return f"engine: {steps}, {code}{exchanges} ({self.plan.reason})"

    def static_size(self, measure: Callable[[], Tensor]) -> int | None:
        """A size of at least `measure()` that rarely changes, for static shapes; None where shapes may change.

        Syncs with the device once.
        """
        if self._stream is None:
            return None
        needed = int(measure())
        if needed > self._capacity or needed * 2 < self._capacity:
            self._capacity = 64 * -(-int(needed * 1.1) // 64)
        return self._capacity

    def compile(self, function: Function, casts_weights: bool = False) -> Function:
        """The function, compiled if that is the plan; eager from the first failure of the compiler on.

        `casts_weights` says that it casts weights to another dtype, as mixed precision does.
        """
        if not self.plan.compiles:
            return function
        if function not in self._compiled:
            import torch._dynamo

            # The count is global in a process; beyond the limit dynamo silently falls back to eager.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
            options = compiler_options(self.device, casts_weights) if self._compile_backend == "inductor" else None
            compiled = torch.compile(function, dynamic=False, backend=self._compile_backend, options=options)
            self._compiled[function] = self._with_eager_fallback(compiled, function)
        return self._compiled[function]  # pyright: ignore[reportReturnType]

    def _with_eager_fallback(self, compiled: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Call `compiled` until its compiler fails, `function` afterwards."""
        from torch._dynamo.exc import TorchDynamoException

        has_failed = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal has_failed
            if not has_failed:
                try:
                    return compiled(*args, **kwargs)
                except TorchDynamoException as failure:
                    has_failed = True
                    # The first two lines of the message; many more follow.
                    reason = " ".join([type(failure).__name__, *str(failure).split("\n")[:2]]).strip()
                    self.eager_fallbacks[function.__qualname__] = reason
                    logger.warning(
                        f"torch.compile failed for {function.__qualname__}; falling back to eager ({reason})"
                    )
            # Outside of the handler, so that errors of the function itself do not carry the compiler's as context.
            return function(*args, **kwargs)

        return run

    def compile_on_gpu(self, function: Function) -> Function:
        """The function, compiled where kernel launches dominate its time: on a GPU, if the plan compiles."""
        return function if self._stream is None else self.compile(function)

    def run_step(
        self,
        function: Callable[[Any], Result],
        argument: Any,
        key: Hashable = None,
        slot: int = 0,
        can_capture: bool = True,
    ) -> Result:
        """Call a function of nested tensors with recurring shapes; its result is valid until its next call.

        `key` holds the Python values that the function reads: a new key captures it again. Arguments that recur in
        every epoch have a `slot` each: one that has not changed since its last call is not copied.
        """
        if self._stream is None or not can_capture:
            return function(argument)
        if function not in self._steps:
            self._steps[function] = GraphedStep(function, self._stream, self.plan.captures_exchanges)
        return self._steps[function](argument, key, slot)

    def loop(
        self,
        function: Callable[[], Any],
        host_state: Sequence[tuple[Any, str]] = (),
        during_capture: Callable[[torch.cuda.Stream], AbstractContextManager[Any]] | None = None,
    ) -> Callable[..., Any]:
        """A function without arguments on tensors at fixed addresses, as one CUDA graph if that is the plan."""
        if self._stream is None:
            return lambda key=None: function()
        self._loops.append(GraphedLoop(function, self._stream, host_state, during_capture))
        return self._loops[-1]

    def discard_graphs(self) -> None:
        """Capture everything again: tensors are no longer where the graphs read them."""
        self._steps.clear()
        for loop in self._loops:
            loop.discard_graph()

    def move_modules(self, modules: Sequence[nn.Module], device: torch.device | str) -> None:
        """Move modules to a device; graphs hold the old addresses and are discarded if one was elsewhere."""
        moved = [move_to(module, device) for module in modules]
        if any(moved):
            self.discard_graphs()


def move_to(module: nn.Module, device: torch.device | str) -> bool:
    """Move a module to a device unless it is there; returns whether it was moved.

    `Module.to` reallocates the weights of a recurrent network even on the same GPU, which breaks captured graphs.
    """
    target = torch.device(device)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type != target.type or target.index not in (None, tensor.device.index):
            module.to(target)
            return True
    return False
