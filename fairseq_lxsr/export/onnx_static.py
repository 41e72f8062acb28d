"""A model without layers as an ONNX graph, by numpy and the library onnx; torch is not needed."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr import __version__
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.numpy_network import ORDER, TABLE

OPSET, IR_VERSION = 18, 9  # ONNX Runtime since 1.17 reads both
LEAST_NORM = 1e-12  # lower bound of the length that normalization divides by


class _Graph:
    """Nodes and constants of a graph; every method that adds a node returns the name of its
    output.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        from onnx import helper

        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output


def write_bag(encoder: SentenceEncoder, path: Path, names: Sequence[str], normalize: bool) -> None:
    """Write the graph; `names` are those of ids and mask [B, T], of states [B, T, D] and of
    embeddings [B, D].
    """
    from onnx import TensorProto, helper, numpy_helper, save

    ids, mask, states, embeddings = names
    graph, size = _Graph(), encoder.size
    _embed(graph, encoder, names, normalize)
    rows, pieces = "sentences", "pieces"
    about = [
        *(
            helper.make_tensor_value_info(name, TensorProto.INT64, [rows, pieces])
            for name in (ids, mask)
        ),
        helper.make_tensor_value_info(states, TensorProto.FLOAT, [rows, None, size.embed_dim]),
        helper.make_tensor_value_info(embeddings, TensorProto.FLOAT, [rows, size.embed_dim]),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in graph.constants.items()]
    made = helper.make_graph(graph.nodes, "bag", about[:2], about[2:], constants)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        made,
        opset_imports=opset,
        producer_name="fairseq-lxsr",
        producer_version=__version__,
        ir_version=IR_VERSION,
    )
    save(model, str(path))


def _embed(graph: _Graph, encoder: SentenceEncoder, names: Sequence[str], normalize: bool) -> None:
    """Add all nodes; pieces that are not in the dictionary have ids beyond it."""
    size, constant, add = encoder.size, graph.constant, graph.add
    longest, one = constant("longest", [size.max_positions]), constant("one", [1])
    padding, given = constant("padding", size.padding_idx), add("Cast", names[1], to=9)  # bool
    cut = add("Slice", add("Where", given, names[0], padding), constant("zero", [0]), longest, one)
    unknown, entries = (
        constant("unknown", encoder.tokenizer.unknown),
        constant("entries", size.vocab_size),
    )
    ids = add("Where", add("Less", cut, entries), cut, unknown)  # [B, T]
    is_token = add("Cast", add("Not", add("Equal", ids, padding)), to=1)
    lengths = add("ReduceSum", is_token, one, keepdims=1)
    lengths = add("Max", lengths, constant("least", np.float32(1)))  # [B, 1]
    table = constant("table", encoder.weights[TABLE] * np.float32(math.sqrt(size.embed_dim)))
    last = constant("last", [2])
    # [B, T, D], 0 at padding
    states = add("Mul", add("Gather", table, ids), add("Unsqueeze", is_token, last))
    if size.order_coefficients:
        states = add("Mul", states, _share(graph, encoder, is_token, lengths))
    embeddings = add("Div", add("ReduceSum", states, one, keepdims=0), lengths)
    if normalize:
        norm = add("ReduceL2", embeddings, one, keepdims=1)
        norm = add("Max", norm, constant("least_norm", np.float32(LEAST_NORM)))  # [B, 1]
        embeddings, states = (
            add("Div", embeddings, norm),
            add("Div", states, add("Unsqueeze", norm, last)),
        )
    add("Identity", states, output=names[2])
    add("Identity", embeddings, output=names[3])


def _share(graph: _Graph, encoder: SentenceEncoder, is_token: str, lengths: str) -> str:
    """Add the weights of the pieces in the embedding relative to a mean [B, T, D], see
    `pooling.order_weights`.
    """
    constant, add = graph.constant, graph.add
    place = add(
        "Sub", add("CumSum", is_token, constant("axis", 1)), constant("half", np.float32(0.5))
    )
    angle = add("Unsqueeze", add("Div", place, lengths), "last")  # [B, T, 1], (t + 1/2) / T
    factors = np.pi * np.arange(1, encoder.size.order_coefficients + 1)
    # [B, T, k]
    cosines = add("Cos", add("Mul", angle, constant("factors", factors.astype(np.float32))))
    share = add("MatMul", cosines, constant("order", encoder.weights[ORDER]))
    return add("Add", share, "least")


def make_mask_optional(path: Path, names: Sequence[str]) -> None:
    """Make the mask of a graph an input of the type optional, all ones where it is not given;
    `names`: `write_bag`.
    """
    from onnx import TensorProto, helper, load, save

    ids, mask = names[:2]
    model = load(str(path))
    for node in model.graph.node:
        node.input[:] = ["read_mask" if name == mask else name for name in node.input]

    def branch(name: str, *nodes: Any) -> Any:
        found = helper.make_tensor_value_info(name, TensorProto.INT64, [None, None])
        return helper.make_graph(nodes, name, [], [found])

    ones = helper.make_tensor("ones", TensorProto.INT64, [1], [1])
    given = branch("given_mask", helper.make_node("OptionalGetElement", [mask], ["given_mask"]))
    shape = helper.make_node("Shape", [ids], ["mask_shape"])
    full = helper.make_node("ConstantOfShape", ["mask_shape"], ["full_mask"], value=ones)
    left_out = branch("full_mask", shape, full)
    first = [
        helper.make_node("OptionalHasElement", [mask], ["has_mask"]),
        helper.make_node(
            "If", ["has_mask"], ["read_mask"], then_branch=given, else_branch=left_out
        ),
    ]
    nodes = [*first, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (about,) = (value for value in model.graph.input if value.name == mask)
    about.type.CopyFrom(helper.make_optional_type_proto(about.type))
    save(model, str(path))
