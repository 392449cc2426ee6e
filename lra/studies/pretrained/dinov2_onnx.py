"""python -m lra.studies.pretrained.dinov2_onnx model.onnx folder: DINOv2's backbone in an ONNX file, for transformers.

Exporters keep parameter names, except that they transpose weights for MatMul and split the position table; both are
found by the name of the node or their shape. The result is compared with onnx's own evaluation of the graph.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

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
    """Extract the parameters by their names in transformers' Dinov2Model. Raises ValueError if there are none."""
    stored = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    named = {name.removeprefix(PREFIX): array for name, array in stored.items() if name.startswith(PREFIX)}
    for node in graph.node:
        name = node.name.strip("/").replace("/", ".")
        if node.op_type == "MatMul" and name.startswith(PREFIX) and node.input[1] in stored:
            named[name.removeprefix(PREFIX).removesuffix(".MatMul") + ".weight"] = stored[node.input[1]].T
    tables = [a for name, a in stored.items() if name.startswith("onnx::") and a.ndim == 3]  # class token, patches
    if "embeddings.cls_token" not in named or len(tables) != 2:
        raise ValueError("the graph holds no DINOv2 backbone under 'backbone.'")
    width = named["embeddings.cls_token"].shape[-1]
    named["embeddings.position_embeddings"] = np.concatenate(sorted(tables, key=lambda a: a.shape[1]), 1)
    named["embeddings.mask_token"] = np.zeros((1, width), np.float32)
    return named


def convert(file: Path, folder: Path) -> float:
    """Write config.json and model.safetensors of an ONNX model into a folder.

    Returns:
        The largest difference from the graph's last hidden state on one image.

    Raises:
        ValueError: the model is not a DINOv2 backbone.
    """
    onnx_model = onnx.load(file)
    graph = onnx_model.graph
    parameters = weights(graph)
    patch = parameters["embeddings.patch_embeddings.projection.weight"].shape
    side = round((parameters["embeddings.position_embeddings"].shape[1] - 1) ** 0.5)
    layers = 1 + max(int(name.split(".")[2]) for name in parameters if name.startswith("encoder.layer."))
    config = Dinov2Config(
        hidden_size=patch[0],
        num_attention_heads=patch[0] // 64,
        num_hidden_layers=layers,
        image_size=side * patch[2],
        patch_size=patch[2],
    )
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in parameters.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model, loading_info = Dinov2Model.from_pretrained(folder, output_loading_info=True)
    if missing := sorted(loading_info["missing_keys"]) or sorted(loading_info["unexpected_keys"]):
        raise ValueError(f"{file} and Dinov2Model do not have the same parameters: {', '.join(map(str, missing[:3]))}")
    nodes = list(graph.node)
    last = max(i for i, node in enumerate(nodes) if node.name.startswith("/backbone/layernorm/"))
    state = onnx.helper.make_tensor_value_info(nodes[last].output[0], onnx.TensorProto.FLOAT, None)
    backbone = onnx.helper.make_graph(nodes[: last + 1], "backbone", graph.input, [state], graph.initializer)
    shape = [d.dim_value or 1 for d in graph.input[0].type.tensor_type.shape.dim]
    image = np.random.default_rng(0).standard_normal(shape, np.float32)
    (expected,) = ReferenceEvaluator(onnx.helper.make_model(backbone, opset_imports=onnx_model.opset_import)).run(
        None, {graph.input[0].name: image}
    )
    with torch.no_grad():
        state_of_model = model.eval()(torch.from_numpy(image)).last_hidden_state.numpy()
    return float(np.abs(state_of_model - expected).max())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m lra.studies.pretrained.dinov2_onnx <model.onnx> <folder>")
    try:
        error = convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except (ValueError, OSError) as problem:
        sys.exit(f"lra: {problem}")
    print(f"written to {sys.argv[2]}; largest difference of the last hidden state on one image: {error:.2g}")
