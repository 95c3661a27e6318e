"""A change to compiled code: small matrices turned round, so that products of many rows with them take the fast way."""

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from st_rl.engine.turned_gradients import add_call

LEAST_ROWS, LEAST_WIDTH, LARGEST_WEIGHT = 1024, 32, 2**20


class TurnedWeights(CustomGraphPass):
    """Lets `rows @ weight` read a float32 weight column by column, as in the gradient of a layer's inputs.

    TF32 of a Hopper GPU is fast only if both factors lie in memory in the order in which they are summed up. Turning a
    weight round costs a copy of it; the product reads and writes a hundred times as much.
    """

    def __call__(self, graph: Graph) -> None:
        """Change every product of a graph that it pays for."""
        for product in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
            rows, weight = product.args
            if _pays(rows.meta["val"], weight.meta["val"]):
                with graph.inserting_before(product), weight.meta["val"].fake_mode:
                    product.args = (rows, _read_by_columns(graph, weight))

    def uuid(self) -> str:
        """Tells the compiler's cache which change this is."""
        return "st_rl: turned weights, 1"


def _pays(rows: torch.Tensor, weight: torch.Tensor) -> bool:
    is_small = weight.numel() <= LARGEST_WEIGHT and min(weight.shape) >= LEAST_WIDTH
    return rows.shape[0] >= LEAST_ROWS and is_small and weight.stride(1) == 1 and weight.dtype == torch.float32


def _read_by_columns(graph: Graph, weight: Node) -> Node:
    """The same matrix, copied so that a column lies in one piece."""
    aten = torch.ops.aten
    turned = add_call(graph, aten.permute.default, weight, [1, 0])
    copy = add_call(graph, aten.clone.default, turned, memory_format=torch.contiguous_format)
    return add_call(graph, aten.permute.default, copy, [1, 0])
