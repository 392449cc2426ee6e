"""The options of the study; the matrices that mechanisms invert, and spectral norms of inverses and attention maps.

N examples, H heads, L tokens; the inverted matrix is m x m.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from ...attention.base import Attention, Sizes
from ...attention.cur import CUR
from ...attention.nystrom import Nystrom
from ...attention.soft import Soft
from ...config.experiment import Experiment
from ...config.schema import Some, Threads
from ...data.datamodule import Batch
from ...evaluate.restore import load_model_and_data, restore_experiment
from ...maps.maps import matrix
from ...model.classifier import Classifier
from ...ops.pinv import newton
from ...options import Range, Whole
from ...runs import checkpoint
from ...runs.run_dir import RunDir
from ..examples import gather_test_batches
from ..qkv import QKVOptions, generate, mechanisms, record_calls
from .measure import InvertedLayer

# The inverses of conf/attn/soft.yaml and softpp.yaml, without the options of their gradients.
PUBLISHED = {
    "SOFT": partial(newton, steps=20, init="soft", ridge=0.01),
    "SOFT++": partial(newton, steps=20, init="softpp"),
}
# Singular values of a float32 matrix below this share of the largest one are rounding.
ROUNDING = 1e-7


class InversesOptions(QKVOptions):
    """The options of conf/inverses.yaml."""

    conf: ClassVar[str] = "inverses"

    run: Some[Path] | None
    steps: Some[Whole]
    dtype: Literal["float32", "float64"]
    kinds: Some[Literal["gaussian", "clustered"]]
    counts: Some[Annotated[int, Range(2)]]
    threads: Threads | None

    def check(self) -> None:
        super().check()
        largest = max(self.counts)
        if self.run is None and largest > self.length:
            raise ValueError(f"counts must be at most {self.length}, the length, not {largest}")


def random_layers(options: InversesOptions) -> Iterator[InvertedLayer]:
    """Yield the matrices of SOFT, Nystromformer and CUR on random tokens, for every kind of tokens and every m.

    Raises:
        ValueError: m is larger than the number of tokens.
    """
    D = options.head_dim
    sizes = Sizes(heads=options.heads, head_dim=D, value_dim=D, length=options.length)
    for kind in dict.fromkeys(options.kinds):
        # An example of random tokens has one layer.
        examples = []
        for (layer,) in generate(kind, options).examples:
            q, k, v = layer
            examples.append({"q": q, "k": k, "v": v})
        for m in dict.fromkeys(options.counts):
            attentions = {
                "soft": Soft(sizes, count=m),
                "nystrom": Nystrom(sizes, landmarks=m, kernel=0),
                "cur_abs": CUR(sizes, count=m),
            }
            for label, attention in attentions.items():
                yield measure_layer(
                    attention.eval(),
                    examples,
                    place=f"{kind} tokens",
                    mechanism=label,
                    weights="random",
                    at=m,
                )


def run_layers(run: RunDir, options: InversesOptions) -> Iterator[InvertedLayer]:
    """Yield the matrices of every layer of a run on ``options.n`` test examples, for each of its ``checkpoints``.

    Raises:
        ValueError: the mechanism inverts nothing, or weights or data are missing, damaged or of another model.
    """
    r = run.result
    experiment = restore_experiment(run, options.data.root)
    if not any(hasattr(attention, "pinv") for attention in mechanisms(experiment.meta_model).values()):
        raise ValueError(
            f"run={run.path} has attn={r.label}, which inverts no matrix; "
            "name one of soft, nystrom, skyformer, cur_step, cur_abs or another cur_* except cur_plus"
        )
    best, data = load_model_and_data(run, experiment)
    examples = [without_padding(batch) for batch in gather_test_batches(data, options.n, 1, "cpu")]
    for weights, step, model in checkpoints(run, experiment, best):
        # The arguments of all calls of each mechanism.
        arguments: dict[str, list[dict]] = defaultdict(list)
        for batch in examples:
            for path, recorded in record_calls(model, batch).items():
                arguments[path] += [call.arguments for call in recorded]
        for i, path in enumerate(arguments):
            attention = mechanisms(model)[path]
            if hasattr(attention, "pinv"):
                yield measure_layer(
                    attention,
                    arguments[path],
                    place=f"layer {i}",
                    mechanism=r.label,
                    weights=weights,
                    at=step,
                )


def checkpoints(run: RunDir, experiment: Experiment, best: Classifier) -> Iterator[tuple[str, int, Classifier]]:
    """Yield name, step and model for the initial, best and last weights of a run.

    The initial weights are drawn from the seed again; they are left out for a run with pretraining. The last weights
    are left out if the run has none, such as a published run, or if they are the best ones.
    """
    if not experiment.pretrained:
        torch.manual_seed(run.result.seed)
        yield "initial", 0, experiment.classifier().eval()
    best_step = run.result.best_step
    assert best_step is not None, "a finished run has a best step"
    yield "best", best_step, best
    state = checkpoint.read_state(run.path / checkpoint.LAST)
    if state and state["global_step"] != best_step:
        weights = {}
        for key, value in state["state_dict"].items():
            weights[key.removeprefix("model.")] = value
        last = experiment.classifier()
        last.load_state_dict(weights)
        yield "last", state["global_step"], last.eval()


def without_padding(batch: Batch) -> Batch:
    """Cut the padding after the last real token of the longest tower from a batch of one example."""
    if batch.mask is None:
        return batch
    is_real = batch.mask.any(1)  # (1,L), in any tower
    end = int(is_real.nonzero()[-1, 1]) + 1
    mask = batch.mask[..., :end]
    inputs = batch.inputs[:, :, :end]
    return batch._replace(inputs=inputs, mask=None if mask.all() else mask)


@torch.no_grad()
def measure_layer(attention: Attention, examples: list[dict], **about) -> InvertedLayer:
    """Record the matrices of a mechanism and measure their spectral norms.

    Args:
        attention: the mechanism.
        examples: arguments of its calls by name.
        about: further fields of ``InvertedLayer``.
    """
    inverted: list[Tensor] = []
    norms: dict[str, list[float]] = defaultdict(list)
    for arguments in examples:
        for name, variant in variants(attention).items():
            a, x, full_map = record_inversion(variant, arguments)
            prefix = f"{name} " if name else ""
            norms[f"{prefix}inverse in use"] += spectral_norms(x)
            norms[f"{prefix}map"] += spectral_norms(full_map)

        # A is the same in every variant.
        singular = torch.linalg.svdvals(a.double()).flatten(0, 1)  # (N·H,m)
        norms["A, the inverted matrix"] += singular[:, 0].tolist()
        for values in singular:
            # The norm of the pseudo-inverse is 1 / the smallest singular value that is not zero up to rounding.
            nonzero = values[values > ROUNDING * values[0]]
            norms["exact inverse of A"].append(1 / nonzero.min().item())
        inverted.extend(a.flatten(0, 1))

    # The number of steps that the mechanism uses, for the figure.
    steps = None
    if isinstance(attention.pinv, partial):
        steps = attention.pinv.keywords.get("steps")
    return InvertedLayer(symmetric=isinstance(attention, Soft), steps=steps, inverted=inverted, norms=norms, **about)


def spectral_norms(matrices: Tensor) -> list[float]:
    """Compute the largest singular value of each matrix (N,H,i,j)."""
    norms = torch.linalg.matrix_norm(matrices.float(), ord=2)  # (N,H)
    return norms.flatten().tolist()


def variants(attention: Attention) -> dict[str, Attention]:
    """Copy a mechanism: Soft as SOFT and as SOFT++, any other one as it is.

    The copy of the same kind as the mechanism keeps its inverse; the other copy gets the published inverse.

    Returns:
        Copies by name: SOFT and SOFT++, or one copy with an empty name.
    """
    if not isinstance(attention, Soft):
        return {"": copy.copy(attention)}
    copies: dict[str, Attention] = {}
    for name, inverse in PUBLISHED.items():
        variant = copy.copy(attention)
        variant.normalise = name == "SOFT++"
        is_original = attention.normalise == variant.normalise
        variant.pinv = attention.pinv if is_original else inverse
        copies[name] = variant
    return copies


def record_inversion(attention: Attention, arguments: dict) -> tuple[Tensor, Tensor, Tensor]:
    """Call a mechanism with the identity as values, and record the matrix that it inverts.

    The call replaces ``pinv`` of the mechanism, so pass a copy.

    Returns:
        The inverted matrix A (N,H,m,m); its inverse X, for SOFT++ Λ^-½ X Λ^-½ with Λ = diag(row sums of A); and the
        matrix that multiplies the values (N,H,L,L).
    """
    pinv = attention.pinv
    recorded = {}

    # ``matrix`` passes the identity in groups of columns; A is the same in each of these calls.
    def record_inverse(a: Tensor) -> Tensor:
        recorded["A"] = a
        recorded["X"] = pinv(a)
        return recorded["X"]

    if isinstance(attention, CUR):
        attention.options = replace(attention.options, pinv=record_inverse)
    else:
        attention.pinv = record_inverse
    full_map = matrix(attention, arguments)
    a = recorded["A"]
    x = recorded["X"]
    if isinstance(attention, Soft) and attention.normalise:
        # SOFT++ multiplies the inverse by Λ^-½ on both sides.
        inverse_root = a.sum(-1, keepdim=True).rsqrt()
        x = inverse_root * x * inverse_root.mT
    return a, x, full_map
