"""How the hot functions of a training run: as they are, compiled, or as CUDA graphs."""

import shutil
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from st_rl.engine.graph import GraphedLoop, GraphedStep
from st_rl.utils.log import logger

ENGINES = ("auto", "eager", "compile", "graph")
# How often one piece of code may be compiled anew in a process, for other networks or sizes.
RECOMPILE_LIMIT = 256
# The compute capability from which on products in TF32 are particular about the order in memory.
FIRST_HOPPER = (9, 0)


class Plan(NamedTuple):
    """What an engine does, and why."""

    graphs: bool
    compiles: bool
    reason: str


def make_plan(setting: str, device: torch.device, iterations: int | None) -> Plan:
    """Decide how to run on a device, for a training of so many iterations."""
    if setting not in ENGINES:
        raise ValueError(f"unknown engine '{setting}'; use one of: {', '.join(ENGINES)}")
    cuda = device.type == "cuda"
    if setting == "eager":
        return Plan(False, False, "asked for")
    if setting == "graph":
        if not cuda:
            raise ValueError(f"engine 'graph' needs a CUDA device, not '{device}'; use 'auto', 'eager' or 'compile'")
        return Plan(True, False, "asked for")
    if setting == "compile":
        return Plan(cuda, True, "asked for")
    if cuda:
        pays = iterations is not None and iterations >= COMPILE_PAYS_AFTER["cuda"]
        return Plan(True, pays, "on a GPU" + (", long enough for compilation to pay back" if pays else ""))
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return Plan(False, False, "no C++ compiler for torch.compile")
    pays = iterations is not None and iterations >= COMPILE_PAYS_AFTER["cpu"]
    return Plan(False, pays, "long enough for compilation to pay back" if pays else "too short for compilation to pay")


# Iterations after which compilation has paid for itself: half a minute of it on a CPU saves some tens of milliseconds
# an iteration. On an H200 with 4,096 quadrupeds 24 s of it saved 18 ms an iteration.
COMPILE_PAYS_AFTER = {"cpu": 1000, "cuda": 2000}


def compiler_options(device: torch.device, converts: bool = False) -> dict[str, Any]:
    """What torch's own compiler is told; `converts` means that weights are converted to another type."""
    # The random numbers of eager code, not the compiler's own.
    options: dict[str, Any] = {"fallback_random": True}
    # What changes compiled code is imported where it is used: it loads the compiler.
    if device.type == "cpu":
        # Shapes are checked before compiled code is called; to check each tensor again takes as long as small kernels.
        options["size_asserts"] = False
        # What calls the kernels is C++ too: Python takes longer for many a kernel than the kernel itself.
        options["cpp_wrapper"] = True
        from st_rl.engine.turned_gradients import TurnedGradients

        options["post_grad_custom_post_pass"] = TurnedGradients()
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_HOPPER:
        from st_rl.engine.turned_weights import TurnedWeights

        options["post_grad_custom_post_pass"] = TurnedWeights()
    if device.type == "cuda" and converts:
        # Each weight, bias and gradient by itself would be a kernel that takes longer to start than to run.
        options["combo_kernels"] = True
    return options


class Engine:
    """Wraps the functions that an algorithm and a runner call again and again; knows neither of them."""

    def __init__(
        self,
        setting: str = "eager",
        device: torch.device | str = "cpu",
        iterations: int | None = None,
        compile_backend: str | Callable[..., Any] = "inductor",
    ):
        self.device = torch.device(device)
        self.plan = make_plan(setting, self.device, iterations)
        self._stream = torch.cuda.Stream(self.device) if self.plan.graphs else None
        self._compile_backend = compile_backend
        self._capacity = 0
        # What the compiler failed on: the name of each function, with the reason.
        self.eager_fallbacks: dict[str, str] = {}
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._steps: dict[Any, GraphedStep] = {}
        self._loops: list[GraphedLoop] = []

    def suits(self, setting: str, iterations: int | None) -> bool:
        """Whether a new engine for this setting would do the same."""
        return make_plan(setting, self.device, iterations) == self.plan

    def describe(self) -> str:
        """One line for the log: what runs how, and why."""
        code = "compiled losses, acting and task" if self.plan.compiles else "losses as written"
        steps = "CUDA graphs" if self.plan.graphs else "no graphs"
        return f"engine: {steps}, {code} ({self.plan.reason})"

    def announce(self) -> None:
        """Say in the log how things run."""
        logger.info(self.describe())

    def static_size(self, measure: Callable[[], Tensor]) -> int | None:
        """A size that holds what `measure` counts and seldom changes; None when sizes may change freely.

        Waits for the device once.
        """
        if self._stream is None:
            return None
        needed = int(measure())
        if needed > self._capacity or needed * 2 < self._capacity:
            self._capacity = 64 * -(-int(needed * 1.1) // 64)
        return self._capacity

    def compiled(self, function: Callable[..., Any], converts: bool = False) -> Callable[..., Any]:
        """The function, compiled if that is the plan; as written from the day on which the compiler fails.

        `converts` says that it converts weights to another type, as mixed precision does.
        """
        if not self.plan.compiles:
            return function
        if function not in self._compiled:
            import torch._dynamo

            # Counted for all trainings of a process together; beyond the limit code would quietly run as written.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
            options = compiler_options(self.device, converts) if self._compile_backend == "inductor" else None
            compiled = torch.compile(function, dynamic=False, backend=self._compile_backend, options=options)
            self._compiled[function] = self._unless_it_fails(compiled, function)
        return self._compiled[function]

    def _unless_it_fails(self, compiled: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiled code until its compiler fails, the function itself from then on."""
        from torch._dynamo.exc import TorchDynamoException

        gives_up = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal gives_up
            if not gives_up:
                try:
                    return compiled(*args, **kwargs)
                except TorchDynamoException as failure:
                    gives_up = True
                    # Its first two lines; many more follow.
                    reason = " ".join([type(failure).__name__, *str(failure).split("\n")[:2]]).strip()
                    self.eager_fallbacks[function.__qualname__] = reason
                    logger.warning(f"the compiler failed: {function.__qualname__} runs as written ({reason})")
            # Outside of the handler: what the function itself raises has nothing to do with the compiler.
            return function(*args, **kwargs)

        def run_or_compile(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except RuntimeError as refusal:
                if "skip_guard_eval_unsafe" not in str(refusal):
                    raise
            # Not compiled yet, for the first time inside of `repeated`: torch refused before it began.
            with torch.compiler.set_stance("default"):
                return run(*args, **kwargs)

        return run_or_compile

    def fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled if that is the plan and many small operations cost more than their work: on a GPU."""
        return function if self._stream is None else self.compiled(function)

    def run_step(self, function: Callable[[Any], Any], argument: Any, key: Hashable = None, turn: int = 0) -> Any:
        """Call a function of nested tensors whose shapes repeat; its result is valid until its next call.

        `key` names the Python values that the function reads: a new one means that it must be captured anew. Arguments
        that come back in turns are told apart by `turn`: one that is unchanged since its last turn need not be copied.
        """
        if self._stream is None:
            return function(argument)
        if function not in self._steps:
            self._steps[function] = GraphedStep(function, self._stream)
        return self._steps[function](argument, key, turn)

    def loop(
        self,
        function: Callable[[], Any],
        host_state: Sequence[tuple[Any, str]] = (),
        during_capture: Callable[[torch.cuda.Stream], AbstractContextManager[Any]] | None = None,
    ) -> Callable[..., Any]:
        """A function without arguments on tensors in fixed places, as one graph if that is the plan."""
        if self._stream is None:
            return lambda key=None: function()
        self._loops.append(GraphedLoop(function, self._stream, host_state, during_capture))
        return self._loops[-1]

    def repeated(self, function: Callable[[], Any]) -> Callable[..., Any]:
        """A function without arguments whose compiled parts are taken for what they were when the key was last new.

        As in a captured loop, `key` names the Python values that the function reads; all that changes without it lies
        in tensors of the same shapes. To check again and again that nothing else has changed takes a tenth of a
        millisecond for each call of compiled code.
        """
        if not self.plan.compiles:
            return lambda key=None: function()
        nothing = object()
        known: Hashable = nothing

        def run(key: Hashable = None) -> Any:
            nonlocal known
            # Not known any more if this call fails.
            is_known, known = key == known, nothing
            with self.skip_guards(is_known):
                outcome = function()
            known = key
            return outcome

        return run

    def skip_guards(self, is_known: bool) -> AbstractContextManager[Any]:
        """Inside, compiled code is taken for what it was if `is_known` that only numbers in tensors have changed."""
        if not self.plan.compiles:
            return nullcontext()
        return torch.compiler.set_stance("default", skip_guard_eval_unsafe=is_known)

    def discard_graphs(self) -> None:
        """Capture everything anew: tensors are no longer where graphs look for them."""
        self._steps.clear()
        for loop in self._loops:
            loop.discard_graphs()
