"""Writes a model without layers as an ONNX graph; torch is not needed."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr import __version__
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import to_int8
from fairseq_lxsr.encoder.numpy_network import ORDER, TABLE
from fairseq_lxsr.encoder.packed_table import PackedTable, to_bytes

# ONNX operator and file format versions, supported by ONNX Runtime since version 1.17.
OPSET = 18
IR_VERSION = 9
# Numbers of the ONNX data types.
FLOAT = 1
BOOL = 9
# Smallest norm to divide by, to avoid dividing by zero.
LEAST_NORM = 1e-12


class _Graph:
    """Nodes and constants of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, name: str, value: Any) -> str:
        """Add a constant and return its name."""
        self.constants[name] = np.asarray(value)
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        from onnx import helper

        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output


def write_bag(
    encoder: SentenceEncoder,
    rows: np.ndarray,
    path: Path,
    names: Sequence[str],
    normalize: bool,
    int8: bool,
) -> None:
    """Write the graph of a model without layers.

    Args:
        encoder: the encoder to export.
        rows: row of the embedding table for each id, int64. Larger ids are unknown pieces.
        path: output file.
        names: graph names of ids [B, T], mask [B, T], states [B, T, D] and embeddings [B, D].
        normalize: scale embeddings to unit length.
        int8: store the table as bytes, with a scale for each row.
    """
    from onnx import TensorProto, helper, numpy_helper, save

    ids, mask, states, embeddings = names
    width = encoder.size.embed_dim
    graph = _Graph()
    _add_embedding(graph, encoder, rows, names, normalize, int8)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["sentences", "pieces"])
        for name in (ids, mask)
    ]
    outputs = [
        helper.make_tensor_value_info(states, TensorProto.FLOAT, ["sentences", None, width]),
        helper.make_tensor_value_info(embeddings, TensorProto.FLOAT, ["sentences", width]),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in graph.constants.items()]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "bag", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="fairseq-lxsr",
        producer_version=__version__,
        ir_version=IR_VERSION,
    )
    save(model, str(path))


def _add_embedding(
    graph: _Graph,
    encoder: SentenceEncoder,
    rows: np.ndarray,
    names: Sequence[str],
    normalize: bool,
    int8: bool,
) -> None:
    """Add the nodes that compute the states and embeddings; see `write_bag` for the arguments."""
    size = encoder.size
    constant = graph.constant
    add = graph.add
    input_ids, mask, states_output, embeddings_output = names
    axis_1 = constant("one", [1])
    padding = constant("padding", size.padding_idx)
    # Masked pieces are treated as padding.
    unmasked = add("Where", add("Cast", mask, to=BOOL), input_ids, padding)
    unknown = constant("unknown", encoder.tokenizer.unknown)
    is_symbol = add("Less", unmasked, constant("symbols", len(rows)))
    # [B, T]
    ids = add("Gather", constant("rows", rows), add("Where", is_symbol, unmasked, unknown))
    is_token = add("Cast", add("Not", add("Equal", ids, padding)), to=FLOAT)
    # [B, 1]
    lengths = add("ReduceSum", is_token, axis_1, keepdims=1)
    lengths = add("Max", lengths, constant("least", np.float32(1)))
    axis_2 = constant("last", [2])
    states = _add_table(graph, encoder, ids, int8)
    # [B, T, D], 0 at padding
    states = add("Mul", states, add("Unsqueeze", is_token, axis_2))
    if size.order_coefficients:
        states = add("Mul", states, _add_shares(graph, encoder, is_token, lengths))
    # [B, D]
    embeddings = add("Div", add("ReduceSum", states, axis_1, keepdims=0), lengths)
    if normalize:
        # [B, 1]
        norm = add("ReduceL2", embeddings, axis_1, keepdims=1)
        norm = add("Max", norm, constant("least_norm", np.float32(LEAST_NORM)))
        embeddings = add("Div", embeddings, norm)
        states = add("Div", states, add("Unsqueeze", norm, axis_2))
    add("Identity", states, output=states_output)
    add("Identity", embeddings, output=embeddings_output)


def _add_table(graph: _Graph, encoder: SentenceEncoder, ids: str, int8: bool) -> str:
    """Add the rows of the table for ids [B, T], and return the name of the result [B, T, D]."""
    factor = np.float32(math.sqrt(encoder.size.embed_dim))
    if not int8:
        return graph.add("Gather", graph.constant("table", encoder.weights[TABLE] * factor), ids)
    packed = encoder.packed_table or PackedTable(*to_int8(encoder.weights[TABLE]))
    codes = graph.constant("table", to_bytes(packed.codes))
    scales = graph.constant("scales", packed.scales[:, None] * factor)
    rows = graph.add("Cast", graph.add("Gather", codes, ids), to=FLOAT)
    return graph.add("Mul", rows, graph.add("Gather", scales, ids))


def _add_shares(graph: _Graph, encoder: SentenceEncoder, is_token: str, lengths: str) -> str:
    """Add the pooling weights of the pieces [B, T, D], relative to plain mean pooling.

    `pooling.order_weights` computes the same.
    """
    constant = graph.constant
    add = graph.add
    # t + 1/2 for the positions t = 0, 1, ...
    position = add("CumSum", is_token, constant("axis", 1))
    position = add("Sub", position, constant("half", np.float32(0.5)))
    # (t + 1/2) / T [B, T, 1]
    angle = add("Unsqueeze", add("Div", position, lengths), "last")
    factors = np.pi * np.arange(1, encoder.size.order_coefficients + 1)
    # [B, T, k]
    cosines = add("Cos", add("Mul", angle, constant("factors", factors.astype(np.float32))))
    shares = add("MatMul", cosines, constant("order", encoder.weights[ORDER]))
    return add("Add", shares, "least")


def make_mask_optional(model: Any, names: Sequence[str]) -> None:
    """Make the mask input of a graph optional; the default is all ones.

    Args:
        model: the ONNX model, changed in place.
        names: names of inputs and outputs; see `write_bag`.
    """
    from onnx import TensorProto, helper

    ids, mask = names[:2]
    for node in model.graph.node:
        node.input[:] = ["read_mask" if name == mask else name for name in node.input]

    def branch(name: str, *nodes: Any) -> Any:
        output = helper.make_tensor_value_info(name, TensorProto.INT64, [None, None])
        return helper.make_graph(nodes, name, [], [output])

    fill_value = helper.make_tensor("ones", TensorProto.INT64, [1], [1])
    given = branch("given_mask", helper.make_node("OptionalGetElement", [mask], ["given_mask"]))
    shape = helper.make_node("Shape", [ids], ["mask_shape"])
    full = helper.make_node("ConstantOfShape", ["mask_shape"], ["full_mask"], value=fill_value)
    default = branch("full_mask", shape, full)
    nodes = [
        helper.make_node("OptionalHasElement", [mask], ["has_mask"]),
        helper.make_node("If", ["has_mask"], ["read_mask"], then_branch=given, else_branch=default),
        *model.graph.node,
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (mask_info,) = (value for value in model.graph.input if value.name == mask)
    mask_info.type.CopyFrom(helper.make_optional_type_proto(mask_info.type))
