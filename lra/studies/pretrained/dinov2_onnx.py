"""python -m lra.studies.pretrained.dinov2_onnx model.onnx folder: convert DINOv2 from ONNX to transformers.

Exporters keep the names of parameters, with two exceptions: the transposed weights of MatMul nodes are found by the
node's name, and the two parts of the position embeddings by their shape. The converted model is compared with onnx's
reference evaluator on one random image.
"""

if __name__ == "__main__":
    from lra.startup import begin

    # Before torch is imported.
    begin()

import sys
from pathlib import Path

import numpy as np
import torch

from ...integrations import needs

with needs("onnx", __name__):
    import onnx
    from onnx.numpy_helper import to_array
    from onnx.reference import ReferenceEvaluator
    from safetensors.torch import save_file
    from transformers import Dinov2Config, Dinov2Model

PREFIX = "backbone."


def weights(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Extract the parameters by their names in transformers' Dinov2Model.

    Raises:
        ValueError: the graph has no DINOv2 backbone below ``backbone.``.
    """
    stored = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    parameters = {}
    for name, array in stored.items():
        if name.startswith(PREFIX):
            parameters[name.removeprefix(PREFIX)] = array

    # Transposed weights have lost their names, but their MatMul nodes have not.
    for node in graph.node:
        if node.op_type != "MatMul":
            continue
        name = node.name.strip("/").replace("/", ".")
        weight = stored.get(node.input[1])
        if name.startswith(PREFIX) and weight is not None:
            module = name.removeprefix(PREFIX).removesuffix(".MatMul")
            parameters[f"{module}.weight"] = weight.T

    # The position embeddings are split into class token and patches.
    tables = [array for name, array in stored.items() if name.startswith("onnx::") and array.ndim == 3]
    if "embeddings.cls_token" not in parameters or len(tables) != 2:
        raise ValueError("the graph holds no DINOv2 backbone under 'backbone.'")
    tables = sorted(tables, key=lambda array: array.shape[1])
    width = parameters["embeddings.cls_token"].shape[-1]
    parameters["embeddings.position_embeddings"] = np.concatenate(tables, 1)
    parameters["embeddings.mask_token"] = np.zeros((1, width), np.float32)
    return parameters


def convert(file: Path, folder: Path) -> float:
    """Write config.json and model.safetensors of an ONNX model into a folder.

    Returns:
        The largest absolute difference from the graph's last hidden state on one random image.

    Raises:
        ValueError: the model has no DINOv2 backbone, or its parameters are not the ones of Dinov2Model.
    """
    onnx_model = onnx.load(file)
    parameters = weights(onnx_model.graph)
    folder.mkdir(parents=True, exist_ok=True)
    _configuration(parameters).save_pretrained(folder)
    tensors = {}
    for name, array in parameters.items():
        # Transposed arrays are not contiguous.
        tensors[name] = torch.from_numpy(array.copy())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    # Load what was written; every parameter must have its counterpart.
    model, loading_info = Dinov2Model.from_pretrained(folder, output_loading_info=True)
    unmatched = sorted(loading_info["missing_keys"]) or sorted(loading_info["unexpected_keys"])
    if unmatched:
        names = ", ".join(map(str, unmatched[:3]))
        raise ValueError(f"{file} and Dinov2Model do not have the same parameters: {names}")

    # Compare both models on one random image.
    graph_input = onnx_model.graph.input[0]
    dimensions = graph_input.type.tensor_type.shape.dim
    shape = [dimension.dim_value or 1 for dimension in dimensions]
    image = np.random.default_rng(0).standard_normal(shape, np.float32)
    evaluator = ReferenceEvaluator(_backbone(onnx_model))
    (expected,) = evaluator.run(None, {graph_input.name: image})
    model.eval()
    with torch.no_grad():
        output = model(torch.from_numpy(image))
    difference = output.last_hidden_state.numpy() - expected
    return float(np.abs(difference).max())


def _configuration(parameters: dict[str, np.ndarray]) -> Dinov2Config:
    """Derive the sizes of a backbone from the shapes of its parameters; all heads of DINOv2 have 64 features."""
    width, _, patch_size, _ = parameters["embeddings.patch_embeddings.projection.weight"].shape
    # One position for each patch of a square image, and one for the class token.
    positions = parameters["embeddings.position_embeddings"]
    num_patches = positions.shape[1] - 1
    side = round(num_patches**0.5)
    layers = [int(name.split(".")[2]) for name in parameters if name.startswith("encoder.layer.")]
    return Dinov2Config(
        hidden_size=width,
        num_attention_heads=width // 64,
        num_hidden_layers=1 + max(layers),
        image_size=side * patch_size,
        patch_size=patch_size,
    )


def _backbone(onnx_model: onnx.ModelProto) -> onnx.ModelProto:
    """Cut the graph after the final layer norm of the backbone, whose output is the last hidden state.

    Raises:
        ValueError: the graph has no such layer norm.
    """
    graph = onnx_model.graph
    nodes = list(graph.node)
    norm_nodes = [i for i, node in enumerate(nodes) if node.name.startswith("/backbone/layernorm/")]
    if not norm_nodes:
        raise ValueError("the graph has no node /backbone/layernorm/...: its final layer norm was fused or renamed")
    last = norm_nodes[-1]
    backbone_nodes = nodes[: last + 1]
    output_name = nodes[last].output[0]
    state = onnx.helper.make_tensor_value_info(output_name, onnx.TensorProto.FLOAT, None)
    backbone = onnx.helper.make_graph(backbone_nodes, "backbone", graph.input, [state], graph.initializer)
    return onnx.helper.make_model(backbone, opset_imports=onnx_model.opset_import)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m lra.studies.pretrained.dinov2_onnx <model.onnx> <folder>")
    try:
        error = convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except (ValueError, OSError) as problem:
        sys.exit(f"lra: {problem}")
    print(f"written to {sys.argv[2]}; largest difference of the last hidden state on one image: {error:.2g}")
