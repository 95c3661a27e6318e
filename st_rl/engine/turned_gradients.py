"""A change to compiled code: gradients of layers with inputs of an odd width computed the other way round."""

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

LEAST_ROWS = 256
# Numbers that a processor of today multiplies at once.
VECTOR_WIDTH = 16


class TurnedGradients(CustomGraphPass):
    """Computes `errors.T @ inputs`, the gradient of a layer's weight, as the transpose of `inputs.T @ errors`.

    On a CPU a product is slow if its rows do not fill vectors: those of a gradient are as wide as the inputs of the
    layer, often an odd number of observations, and the other way round as its outputs, mostly a multiple of a vector.
    """

    def __call__(self, graph: Graph) -> None:
        """Change every product of a graph that it pays for."""
        for product in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
            left, right = product.args
            if not _pays(left.meta["val"], right.meta["val"]):
                continue
            with graph.inserting_before(product), left.meta["val"].fake_mode:
                turned = add_call(graph, torch.ops.aten.mm.default, _transposed(graph, right), _transposed(graph, left))
                # Rows as long as those of the weight, which its optimiser reads beside it.
                result = add_call(
                    graph,
                    torch.ops.aten.clone.default,
                    _transposed(graph, turned),
                    memory_format=torch.contiguous_format,
                )
            product.replace_all_uses_with(result)
            graph.erase_node(product)

    def uuid(self) -> str:
        """Tells the compiler's cache which change this is."""
        return "st_rl: turned gradients, 1"


def _pays(left: torch.Tensor, right: torch.Tensor) -> bool:
    fills_vectors = left.shape[0] % VECTOR_WIDTH == 0 and right.shape[1] % VECTOR_WIDTH != 0
    is_gradient = left.stride(0) == 1 and right.stride(1) == 1 and right.shape[0] >= LEAST_ROWS
    return fills_vectors and is_gradient and left.dtype == torch.float32


def _transposed(graph: Graph, matrix: Node) -> Node:
    return add_call(graph, torch.ops.aten.permute.default, matrix, [1, 0])


def add_call(graph: Graph, operation: Any, *args: Any, **kwargs: Any) -> Node:
    """Put an operation into a graph, with the example value that later passes ask for."""
    node = graph.call_function(operation, args, kwargs)
    values = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in args]
    node.meta["val"] = operation(*values, **kwargs)
    return node
