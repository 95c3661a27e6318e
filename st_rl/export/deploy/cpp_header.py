"""A policy file as one C++17 header with the weights inside: no dependency, no allocation.

The graph of `policy.onnx` has static shapes, so each of its operators becomes a few loops over arrays of fixed size.
Numbers are float32 throughout; booleans and indices are stored as floats.
"""

import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from st_rl.export.onnx_file import ExportError, require_onnx

HEADER_FILE, MAIN_FILE, REPLAY_FILE = "policy.hpp", "main.cpp", "golden.bin"
# C++ expressions of elementwise operators.
BINARY = {
    "Add": "{0} + {1}", "Sub": "{0} - {1}", "Mul": "{0} * {1}", "Div": "{0} / {1}", "Pow": "std::pow({0}, {1})",
    "Max": "std::max({0}, {1})", "Min": "std::min({0}, {1})", "Greater": "{0} > {1} ? 1.0f : 0.0f",
    "GreaterOrEqual": "{0} >= {1} ? 1.0f : 0.0f", "Less": "{0} < {1} ? 1.0f : 0.0f",
    "LessOrEqual": "{0} <= {1} ? 1.0f : 0.0f", "Equal": "{0} == {1} ? 1.0f : 0.0f", "And": "{0} * {1}",
    "Or": "std::max({0}, {1})", "Where": "{0} != 0.0f ? {1} : {2}",
}  # fmt: skip
UNARY = {
    "Elu": "{0} > 0.0f ? {0} : {alpha} * std::expm1({0})", "Relu": "std::max({0}, 0.0f)",
    "LeakyRelu": "{0} > 0.0f ? {0} : {alpha} * {0}", "Tanh": "std::tanh({0})",
    "Selu": "{gamma} * ({0} > 0.0f ? {0} : {alpha} * std::expm1({0}))",
    "Sigmoid": "1.0f / (1.0f + std::exp(-{0}))",
    "Softplus": "std::max({0}, 0.0f) + std::log1p(std::exp(-std::abs({0})))",
    "Sin": "std::sin({0})", "Cos": "std::cos({0})", "Exp": "std::exp({0})", "Log": "std::log({0})",
    "Sqrt": "std::sqrt({0})", "Abs": "std::abs({0})", "Neg": "-{0}", "Floor": "std::floor({0})",
    "Sign": "static_cast<float>(({0} > 0.0f) - ({0} < 0.0f))", "Reciprocal": "1.0f / {0}", "Erf": "std::erf({0})",
    "Not": "1.0f - {0}", "Atan": "std::atan({0})", "IsNaN": "std::isnan({0}) ? 1.0f : 0.0f",
}  # fmt: skip
DEFAULT_ALPHA = {"Elu": 1.0, "LeakyRelu": 0.01, "Selu": 1.6732631921768188}
# Start value, step and end of a reduction.
REDUCTIONS = {
    "ReduceSum": ("0.0f", "{0} + {1}", "{0}"), "ReduceProd": ("1.0f", "{0} * {1}", "{0}"),
    "ReduceMean": ("0.0f", "{0} + {1}", "{0} / {count}"),
    "ReduceL2": ("0.0f", "{0} + {1} * {1}", "std::sqrt({0})"),
    "ReduceMax": ("-INFINITY", "std::max({0}, {1})", "{0}"), "ReduceMin": ("INFINITY", "std::min({0}, {1})", "{0}"),
}  # fmt: skip
# Operators that only change the shape of contiguous data.
VIEWS = ("Unsqueeze", "Squeeze", "Reshape", "Flatten", "Identity", "Cast")
# Operators of which every output element is an element of the first input.
MOVES = ("Slice", "Split", "Gather", "GatherND", "GatherElements", "Transpose", "Expand", "Tile")
Shape = tuple[int, ...]


class Value(NamedTuple):
    """A tensor of the graph: a C++ array and its shape."""

    name: str
    shape: Shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def write_cpp_files(
    folder: Path, onnx_file: Path, golden: Mapping[str, np.ndarray], description: Mapping[str, Any]
) -> None:
    """Write the C++ files of a kit: the header, the example that replays the golden run, and its data."""
    write_header(onnx_file, folder / HEADER_FILE)
    write_replay_data(golden, description, folder / REPLAY_FILE)
    shutil.copyfile(Path(__file__).parent / "files" / MAIN_FILE, folder / MAIN_FILE)


def write_replay_data(golden: Mapping[str, np.ndarray], description: Mapping[str, Any], path: Path) -> None:
    """Write the golden run as rows of float32 for `main.cpp`: reset, inputs, states, outputs."""
    names = ["reset", *description["inputs"], *(f"state_{name}" for name in description["states"])]
    columns = [golden[name].reshape(len(golden["reset"]), -1) for name in [*names, *description["outputs"]]]
    path.write_bytes(np.concatenate(columns, axis=1).astype("<f4").tobytes())


def replay_header(folder: Path, compiler: str, options: Sequence[str] = ("-O2",)) -> dict[str, float]:
    """Compile `main.cpp` of a kit, replay the golden run, and return what it prints by name.

    `largest_difference_rad`, `microseconds_per_step` and `steps`; ExportError if it does not compile or run.
    """
    with tempfile.TemporaryDirectory() as build:
        program = Path(build) / "replay"
        source, data = str(folder / MAIN_FILE), str(folder / REPLAY_FILE)
        for command in ([compiler, "-std=c++17", *options, "-o", str(program), source], [str(program), data]):
            outcome = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if outcome.returncode > 1 or (outcome.returncode and command[0] == compiler):
                raise ExportError(f"{command[0]} failed on {HEADER_FILE}: {outcome.stderr.strip()[-500:]}")
    return {name: float(value) for name, value in (line.split() for line in outcome.stdout.splitlines())}


def write_header(onnx_file: Path, path: Path) -> None:
    """Translate a policy file of the deploy kit to a C++ header; ExportError for an operator it does not know."""
    onnx = require_onnx()[0]
    model = onnx.shape_inference.infer_shapes(onnx.load(str(onnx_file)), data_prop=True)
    path.write_text(HeaderGenerator(onnx, model).generate(), encoding="utf-8")


class HeaderGenerator:
    """Translates one ONNX graph; `generate` returns the header."""

    def __init__(self, onnx: Any, model: Any):
        self._onnx, self._graph = onnx, model.graph
        self._constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in self._graph.initializer}
        self._shapes = {value.name: _static_shape(value) for value in (*self._graph.value_info, *self._graph.output)}
        self._values: dict[str, Value] = {}
        self._written_constants: dict[str, np.ndarray] = {}
        self._tables: dict[str, np.ndarray] = {}
        self._buffers: list[Value] = []
        self._lines: list[str] = []

    def generate(self) -> str:
        """Return the C++ code."""
        inputs = {value.name: _static_shape(value) for value in self._graph.input}
        outputs = [value.name for value in self._graph.output]
        states = {name: shape for name, shape in inputs.items() if f"next_{name}" in outputs}
        sensors = {name: shape for name, shape in inputs.items() if name not in states}
        for source, signals in (("in", sensors), ("state", states)):
            for name, shape in signals.items():
                self._values[name] = Value(f"{source}.{_identifier(name)}.data()", shape)
        for node in self._graph.node:
            self._translate(node)
        stores: list[str] = []
        for name in outputs:
            target = f"state.{_identifier(name.removeprefix('next_'))}" if name.startswith("next_") else f"out.{name}"
            value = self._value(name)
            if "state." in value.name:
                value = self._copied(name, value)
            stores.append(f"for (int i = 0; i < {value.size}; ++i) {target}[i] = {value.name}[i];")
        self._lines += stores
        plain = {name: self._shapes[name] for name in outputs if not name.startswith("next_")}
        return TEMPLATE.format(
            inputs=_struct_fields(sensors),
            state=_struct_fields(states),
            outputs=_struct_fields(plain),
            constants="\n".join(
                [
                    _array("float", name, map(_number, values.reshape(-1)))
                    for name, values in self._written_constants.items()
                ]
                + [_array("int", name, map(str, indices.tolist())) for name, indices in self._tables.items()]
            ),
            buffers="\n".join(f"  float {value.name}[{value.size}] = {{}};" for value in self._buffers),
            code="\n".join(f"    {line}" for line in self._lines),
        )

    # ---- values ------------------------------------------------------------------------------------------------------

    def _value(self, name: str) -> Value:
        """The C++ array of a tensor; writes it into the header if it is a constant."""
        if name not in self._values:
            self._values[name] = self._constant(self._constants[name])
        return self._values[name]

    def _constant(self, values: np.ndarray) -> Value:
        name = f"constant_{len(self._written_constants)}"
        self._written_constants[name] = values.astype(np.float32)
        return Value(f"detail::{name}", values.shape)

    def _buffer(self, name: str, shape: Shape | None = None) -> Value:
        """A new array for a result of the graph."""
        value = Value(f"v{len(self._buffers)}_", self._shapes[name] if shape is None else shape)
        self._values[name] = value
        self._buffers.append(value)
        return value

    def _copied(self, name: str, value: Value) -> Value:
        """A copy of a view of the state, which the stores at the end would overwrite."""
        copy = self._buffer(name, value.shape)
        self._lines.append(f"for (int i = 0; i < {copy.size}; ++i) {copy.name}[i] = {value.name}[i];")
        return copy

    def _index_table(self, indices: np.ndarray) -> str:
        """Write a table of indices into the header and return its name."""
        name = f"index_{len(self._tables)}"
        self._tables[name] = indices
        return f"detail::{name}"

    def _fixed(self, node: Any, index: int) -> np.ndarray | None:
        """The value of an optional input that must be constant, such as axes."""
        if len(node.input) <= index or not node.input[index]:
            return None
        name = node.input[index]
        if name not in self._constants:
            raise ExportError(f"{HEADER_FILE} cannot hold {node.op_type} with a computed '{name}'; use policy.onnx")
        return self._constants[name]

    # ---- operators ---------------------------------------------------------------------------------------------------

    def _translate(self, node: Any) -> None:
        kind = node.op_type
        options = {item.name: self._onnx.helper.get_attribute_value(item) for item in node.attribute}
        if kind == "Constant":
            self._constants[node.output[0]] = self._onnx.numpy_helper.to_array(options["value"])
        elif all(name in self._constants for name in node.input if name):
            self._constants.update(zip(node.output, self._evaluate(node, {})))
        elif kind in BINARY:
            self._elementwise(node, BINARY[kind])
        elif kind in UNARY:
            alpha = _number(options.get("alpha", DEFAULT_ALPHA.get(kind, 0.0)))
            gamma = _number(options.get("gamma", 1.05070102))
            self._elementwise(node, UNARY[kind].replace("{alpha}", alpha).replace("{gamma}", gamma))
        elif kind in REDUCTIONS:
            self._reduce(node, *REDUCTIONS[kind], options)
        elif kind == "Gather" and node.input[1] not in self._constants:
            self._gather_rows(node, options)
        elif kind in MOVES:
            self._move(node)
        elif kind in VIEWS:
            source = self._value(node.input[0])
            self._values[node.output[0]] = Value(source.name, self._shapes[node.output[0]])
        else:
            translate: Callable[[Any, Mapping[str, Any]], None] | None = getattr(self, f"_{kind.lower()}", None)
            if translate is None:
                raise ExportError(f"{HEADER_FILE} has no code for the operator {kind}; use policy.onnx")
            translate(node, options)

    def _evaluate(self, node: Any, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results of one operator on given values and constants, computed now."""
        for number, name in enumerate(node.input):
            if name and name not in values:
                values = {**values, name: cast(np.ndarray, self._fixed(node, number))}
        return self._onnx.reference.ReferenceEvaluator(node).run(None, values)

    def _elementwise(self, node: Any, expression: str) -> None:
        """`expression` of all inputs, broadcast against each other, for every element of the output."""
        values = [self._value(name) for name in node.input]
        output = self._buffer(node.output[0])
        if len(values) > 2 and "{2}" not in expression:
            raise ExportError(f"{HEADER_FILE} has no code for {node.op_type} of {len(values)} tensors; use policy.onnx")
        operands = [self._strided(value, output.shape) for value in values]

        def assign(at: Callable[..., str]) -> str:
            arguments = [f"{name}[{at(strides=strides)}]" for name, strides in operands]
            return f"{output.name}[{at(output.shape)}] = {expression.format(*arguments)};"

        self._loop(output.shape, assign)

    def _clip(self, node: Any, options: Mapping[str, Any]) -> None:
        low, high = self._fixed(node, 1), self._fixed(node, 2)
        expression = "{0}" if low is None else f"std::max({{0}}, {_number(low)})"
        expression = expression if high is None else f"std::min({expression}, {_number(high)})"
        value, output = self._value(node.input[0]), self._buffer(node.output[0])
        self._lines.append(
            f"for (int i = 0; i < {output.size}; ++i) {output.name}[i] = {expression.format(value.name + '[i]')};"
        )

    def _reduce(self, node: Any, start: str, step: str, end: str, options: Mapping[str, Any]) -> None:
        value, output = self._value(node.input[0]), self._buffer(node.output[0])
        fixed = self._fixed(node, 1)
        axes = options.get("axes", range(len(value.shape)) if fixed is None else fixed.tolist())
        axes = sorted(axis % len(value.shape) for axis in axes)
        strides = _strides(value.shape)
        kept = [axis for axis in range(len(value.shape)) if axis not in axes]
        count = math.prod(value.shape[axis] for axis in axes)
        outer, inner = [value.shape[axis] for axis in kept], [value.shape[axis] for axis in axes]
        source = f"{value.name}[{_index(_loop_names(range(len(kept)), 'i'), [strides[axis] for axis in kept])}"
        source += f" + {_index(_loop_names(range(len(axes)), 'k'), [strides[axis] for axis in axes])}]"
        target = _index(_loop_names(range(len(kept)), "i"), _strides(tuple(outer)))
        finish = end.replace("{count}", f"{count}.0f").format("sum")
        lines = [*_loop_heads(outer, "i"), f"float sum = {start};"]
        lines += [*_loop_heads(inner, "k"), f"sum = {step.format('sum', source)};", "}" * len(inner)]
        lines += [f"{output.name}[{target}] = {finish};", "}" * len(outer)]
        self._lines.append("{ " + " ".join(line for line in lines if line) + " }")

    def _gemm(self, node: Any, options: Mapping[str, Any]) -> None:
        if options.get("transA", 0) or options.get("alpha", 1.0) != 1.0 or options.get("beta", 1.0) != 1.0:
            raise ExportError(f"{HEADER_FILE} has no code for a scaled or transposed Gemm; use policy.onnx")
        weight = self._weights(node, 1)
        self._linear(node, weight.T if options.get("transB", 0) else weight, self._fixed(node, 2))

    def _matmul(self, node: Any, options: Mapping[str, Any]) -> None:
        self._linear(node, self._weights(node, 1), None)

    def _weights(self, node: Any, index: int) -> np.ndarray:
        weights = self._fixed(node, index)
        if weights is None or weights.ndim != 2:
            raise ExportError(f"{HEADER_FILE} has no code for {node.op_type} with weights that are not a matrix")
        return weights

    def _linear(self, node: Any, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """`x W + b` with `W` `(inputs, outputs)`, so that the inner loop is over contiguous outputs."""
        value, output = self._value(node.input[0]), self._buffer(node.output[0])
        rows, (inputs, outputs) = value.size // weight.shape[0], weight.shape
        start = np.zeros(outputs) if bias is None else np.broadcast_to(bias.reshape(-1), outputs)
        matrix, offset = self._constant(np.ascontiguousarray(weight)), self._constant(np.ascontiguousarray(start))
        self._lines.append(
            f"detail::linear<{rows}, {inputs}, {outputs}>({value.name}, {matrix.name}, {offset.name}, {output.name});"
        )

    def _gru(self, node: Any, options: Mapping[str, Any]) -> None:
        if options.get("linear_before_reset", 0) != 1:
            raise ExportError(f"{HEADER_FILE} has no code for a GRU that resets before its linear layer")
        self._recurrent(node, options, "gru", 3)

    def _lstm(self, node: Any, options: Mapping[str, Any]) -> None:
        self._recurrent(node, options, "lstm", 4)

    def _recurrent(self, node: Any, options: Mapping[str, Any], function: str, num_gates: int) -> None:
        """One step of a recurrent layer; gates in the order of ONNX."""
        if options.get("direction", b"forward") != b"forward" or (len(node.input) > 7 and node.input[7]):
            raise ExportError(f"{HEADER_FILE} has no code for a bidirectional or peephole {node.op_type}")
        value, size = self._value(node.input[0]), int(options["hidden_size"])
        if value.shape[0] * value.shape[1] != 1:
            raise ExportError(f"{HEADER_FILE} has no code for a {node.op_type} over several steps or robots")
        weights = [self._fixed(node, index) for index in (1, 2, 3)]
        input_weight, hidden_weight, bias = (None if array is None else array[0] for array in weights)
        if input_weight is None or hidden_weight is None:
            raise ExportError(f"{HEADER_FILE} needs the weights of a {node.op_type}")
        bias = np.zeros(2 * num_gates * size) if bias is None else bias
        constants = [input_weight.T, hidden_weight.T, *np.split(bias, 2)]
        names = [self._constant(np.ascontiguousarray(array)).name for array in constants]
        states = [self._value(name).name for name in node.input[5 : 7 if num_gates == 4 else 6]]
        # Y, Y_h and, of an LSTM, Y_c: the first two are the same for one step.
        hidden = self._buffer(node.output[0], (1, 1, 1, size))
        results = [hidden.name]
        if num_gates == 4:
            results.append(self._buffer(node.output[2] or f"{node.output[0]} cell", (1, 1, size)).name)
        self._values[node.output[1]] = Value(hidden.name, (1, 1, size))
        arguments = ", ".join([value.name, *states, *names, *results])
        self._lines.append(f"detail::{function}<{value.shape[-1]}, {size}>({arguments});")

    def _move(self, node: Any) -> None:
        """Copy elements: the operator applied to their numbers says which element each output element is."""
        value = self._value(node.input[0])
        numbers = np.arange(value.size).reshape(value.shape)
        for name, sources in zip(node.output, self._evaluate(node, {node.input[0]: numbers})):
            flat = sources.reshape(-1)
            if np.array_equal(flat, flat[0] + np.arange(flat.size)):
                start = f"({value.name} + {flat[0]})" if flat[0] else value.name
                self._values[name] = Value(start, sources.shape)
                continue
            output, table = self._buffer(name), self._index_table(flat)
            self._lines.append(f"for (int i = 0; i < {output.size}; ++i) {output.name}[i] = {value.name}[{table}[i]];")

    def _gather_rows(self, node: Any, options: Mapping[str, Any]) -> None:
        """Copy the rows of a table that computed indices name, such as a frame of a clip."""
        table, rows, output = self._value(node.input[0]), self._value(node.input[1]), self._buffer(node.output[0])
        if options.get("axis", 0) != 0:
            raise ExportError(f"{HEADER_FILE} has no code for a Gather of computed columns; use policy.onnx")
        width = math.prod(table.shape[1:])
        self._lines.append(
            f"for (int i = 0; i < {output.size}; ++i) {output.name}[i] = "
            f"{table.name}[static_cast<int>({rows.name}[i / {width}]) * {width} + i % {width}];"
        )

    def _scatternd(self, node: Any, options: Mapping[str, Any]) -> None:
        """Copy elements of the data, and of the updates where constant indices say so."""
        if options.get("reduction", b"none") != b"none":
            raise ExportError(f"{HEADER_FILE} has no code for {node.op_type} with a reduction; use policy.onnx")
        data, updates = self._value(node.input[0]), self._value(node.input[2])
        numbers = {
            node.input[0]: np.arange(data.size).reshape(data.shape),
            node.input[2]: data.size + np.arange(updates.size).reshape(updates.shape),
        }
        sources = self._evaluate(node, numbers)[0].reshape(-1)
        output, table = self._buffer(node.output[0]), self._index_table(sources)
        self._lines.append(
            f"for (int i = 0; i < {output.size}; ++i) {output.name}[i] = {table}[i] < {data.size} ? "
            f"{data.name}[{table}[i]] : {updates.name}[{table}[i] - {data.size}];"
        )

    _scatterelements = _scatternd

    def _concat(self, node: Any, options: Mapping[str, Any]) -> None:
        output = self._buffer(node.output[0])
        axis, offset, strides = int(options["axis"]) % len(output.shape), 0, _strides(output.shape)
        for name in node.input:
            value = self._value(name)
            self._loop(value.shape, lambda at, value=value, offset=offset: (
                f"{output.name}[{offset} + {at(strides=strides)}] = {value.name}[{at(value.shape)}];"))  # fmt: skip
            offset += value.shape[axis] * strides[axis]

    def _conv(self, node: Any, options: Mapping[str, Any]) -> None:
        """A convolution of one image `(1, C, H, W)`."""
        value, output = self._value(node.input[0]), self._buffer(node.output[0])
        weight, bias = self._fixed(node, 1), self._fixed(node, 2)
        if (
            weight is None
            or weight.ndim != 4
            or options.get("group", 1) != 1
            or {*options.get("dilations", [1])} != {1}
        ):
            raise ExportError(f"{HEADER_FILE} has no code for a grouped, dilated or one-dimensional Conv")
        sizes = [*value.shape[1:], *output.shape[1:], *weight.shape[2:]]
        sizes += [*options.get("strides", [1, 1]), *options.get("pads", [0, 0])[:2]]
        start = np.zeros(weight.shape[0]) if bias is None else bias
        names = [self._constant(array).name for array in (weight, start)]
        arguments = ", ".join([value.name, *names, output.name])
        self._lines.append(f"detail::conv<{', '.join(map(str, sizes))}>({arguments});")

    def _maxpool(self, node: Any, options: Mapping[str, Any]) -> None:
        """The maximum in windows of one image `(1, C, H, W)`."""
        value, output = self._value(node.input[0]), self._buffer(node.output[0])
        window, steps = options["kernel_shape"], options.get("strides", [1, 1])
        sizes = [*value.shape[1:], *output.shape[2:], *window, *steps, *options.get("pads", [0, 0])[:2]]
        self._lines.append(f"detail::max_pool<{', '.join(map(str, sizes))}>({value.name}, {output.name});")

    # ---- loops -------------------------------------------------------------------------------------------------------

    def _strided(self, value: Value, shape: Shape) -> tuple[str, list[int]]:
        """The array and the strides with which it is read at an index of a broadcast `shape`."""
        own = [1] * (len(shape) - len(value.shape)) + list(value.shape)
        strides = [0] * (len(shape) - len(value.shape)) + list(_strides(value.shape))
        return value.name, [0 if size == 1 else stride for size, stride in zip(own, strides)]

    def _loop(self, shape: Shape, body: Callable[[Callable[..., str]], str]) -> None:
        """Append loops over all indices of a shape; `body` gets a function from a shape or strides to an index."""
        axes = [axis for axis, size in enumerate(shape) if size != 1]

        def at(of: Shape | None = None, strides: Sequence[int] = ()) -> str:
            steps = _strides(of) if of is not None else strides
            return _index(_loop_names(axes, "i"), [steps[axis] for axis in axes])

        heads = _loop_heads([shape[axis] for axis in axes], "i", axes)
        self._lines.append(" ".join([*heads, body(at), "}" * len(heads)]).strip())


def _static_shape(value: Any) -> Shape:
    """The shape of a graph value; ExportError if it is not fixed."""
    sizes = value.type.tensor_type.shape.dim
    if any(not size.HasField("dim_value") for size in sizes):
        raise ExportError(f"{HEADER_FILE} needs fixed shapes; '{value.name}' has none")
    return tuple(size.dim_value for size in sizes)


def _strides(shape: Shape) -> Shape:
    """Strides of a contiguous array, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _loop_names(axes: Sequence[int], letter: str) -> list[str]:
    return [f"{letter}{axis}" for axis in axes]


def _loop_heads(sizes: Sequence[int], letter: str, axes: Sequence[int] | None = None) -> list[str]:
    names = _loop_names(range(len(sizes)) if axes is None else axes, letter)
    return [f"for (int {name} = 0; {name} < {size}; ++{name}) {{" for name, size in zip(names, sizes)]


def _index(names: Sequence[str], strides: Sequence[int]) -> str:
    terms = [name if stride == 1 else f"{stride} * {name}" for name, stride in zip(names, strides) if stride]
    return " + ".join(terms) or "0"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _number(value: Any) -> str:
    """A float32 as a C++ literal that reads back as the same number."""
    number = float(np.float32(value))
    if math.isinf(number) or math.isnan(number):
        return "NAN" if math.isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
    text = f"{number:.9g}"
    return f"{text if any(letter in text for letter in '.e') else text + '.0'}f"


def _array(kind: str, name: str, literals: Iterable[str]) -> str:
    numbers = list(literals)
    rows = [", ".join(numbers[start : start + 8]) for start in range(0, len(numbers), 8)]
    return f"inline constexpr {kind} {name}[{len(numbers)}] = {{\n  " + ",\n  ".join(rows) + "};"


def _struct_fields(signals: Mapping[str, Shape]) -> str:
    return "\n".join(f"  std::array<float, {math.prod(shape)}> {_identifier(n)}{{}};" for n, shape in signals.items())


TEMPLATE = (Path(__file__).parent / "files" / "policy.hpp.in").read_text(encoding="utf-8")
