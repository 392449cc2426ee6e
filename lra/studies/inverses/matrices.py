"""The options of the study; the matrices that mechanisms invert, and the spectral norms of what they make of them.

N examples, H heads, L tokens, m rows of the inverted matrix.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...attention.base import Attention, Sizes
from ...attention.cur import CUR
from ...attention.nystrom import Nystrom
from ...attention.soft import Soft
from ...config.experiment import Experiment
from ...config.sections import Some, Threads
from ...data.datamodule import Batch
from ...maps.maps import matrix
from ...ops.pinv import newton
from ...options import Range, Whole
from ...runs import checkpoint
from ...runs.restore import configuration, trained
from ...runs.run_dir import RunDir
from ..examples import batches
from ..qkv import QKVOptions, calls, generated, mechanisms
from .measure import InvertedLayer

PUBLISHED = {  # the inverses of conf/attn/soft.yaml and softpp.yaml
    "SOFT": partial(newton, steps=20, init="soft", ridge=0.01),
    "SOFT++": partial(newton, steps=20, init="softpp"),
}
ROUNDING = 1e-7  # relative; smaller singular values of a matrix in float32 are not told from zero


class InversesOptions(QKVOptions):
    conf: ClassVar[str] = "inverses"

    run: Some[Path] | None
    steps: Some[Whole]
    dtype: Literal["float32", "float64"]
    kinds: Some[Literal["gaussian", "clustered"]]
    counts: Some[Annotated[int, Range(2)]]
    threads: Threads | None


def random_tokens(options: InversesOptions) -> Iterator[InvertedLayer]:
    """Yield the matrices of SOFT, Nystromformer and CUR on random tokens for every kind and m.

    Raises:
        ValueError: m is larger than the number of tokens.
    """
    D = options.head_dim
    sizes = Sizes(heads=options.heads, head_dim=D, value_dim=D, length=options.length)
    for kind in options.kinds:
        examples = [{"q": q, "k": k, "v": v} for ((q, k, v),) in generated(kind, options).examples]
        for m in options.counts:
            some = {
                "soft": Soft(sizes, count=m),
                "nystrom": Nystrom(sizes, landmarks=m, kernel=0),
                "cur_abs": CUR(sizes, count=m),
            }
            for label, attention in some.items():
                yield layer(attention.eval(), examples, place=f"{kind} tokens", mechanism=label, weights="random", at=m)


def of_run(run: RunDir, options: InversesOptions) -> Iterator[InvertedLayer]:
    """Yield the matrices of every layer of a run on test examples, before, within and after its training.

    Raises:
        ValueError: the mechanism inverts nothing, or weights or data are missing, damaged or of another model.
    """
    experiment, r = configuration(run, options.data.root), run.record
    if not any(hasattr(attention, "pinv") for attention in mechanisms(experiment.meta_model).values()):
        raise ValueError(
            f"run={run.path} has attn={r.label}, which inverts no matrix; name one of soft, nystrom, cur_*"
        )
    best, data = trained(run, experiment)
    some = [real(batch) for batch in batches(data, options.n, 1, "cpu")]
    for weights, at, model in checkpoints(run, experiment, best):
        recorded: dict[str, list[dict]] = defaultdict(list)
        for batch in some:
            for path, made in calls(model, batch).items():
                recorded[path] += [call.arguments for call in made]
        for place, (path, arguments) in enumerate(recorded.items()):
            attention = mechanisms(model)[path]
            if hasattr(attention, "pinv"):
                yield layer(attention, arguments, place=f"layer {place}", mechanism=r.label, weights=weights, at=at)


def checkpoints(run: RunDir, experiment: Experiment, best: nn.Module) -> Iterator[tuple[str, int, nn.Module]]:
    """Yield name, step and model of every set of weights that a run has.

    The initial ones are drawn from the seed again, unless pretraining came before. ``last`` is left out if it is not
    there, as in a published run, or is ``best``.
    """
    if not experiment.pretrained:
        torch.manual_seed(run.record.seed)
        yield "initial", 0, experiment.classifier().eval()
    yield "best", run.record.best_step, best
    state = checkpoint.state(run.path / checkpoint.LAST)
    if state and state["global_step"] != run.record.best_step:
        last = experiment.classifier()
        last.load_state_dict({key.removeprefix("model."): value for key, value in state["state_dict"].items()})
        yield "last", state["global_step"], last.eval()


def real(batch: Batch) -> Batch:
    """The batch of one example without the padding behind its last real token."""
    if batch.mask is None:
        return batch
    end = int(batch.mask.any(1).nonzero()[-1, 1]) + 1
    mask = batch.mask[..., :end]
    return batch._replace(inputs=batch.inputs[:, :, :end], mask=None if mask.all() else mask)


@torch.no_grad()
def layer(attention: Attention, examples: list[dict], **about) -> InvertedLayer:
    """Measure a mechanism on the arguments of its calls; ``about`` are further fields of ``InvertedLayer``."""
    inner: list[Tensor] = []
    norms: dict[str, list[float]] = defaultdict(list)
    for arguments in examples:
        for name, one in variants(attention).items():
            a, x, whole = taken(one, arguments)
            for what, found in (("inverse in use", x), ("map", whole)):
                norms[f"{name} {what}".strip()] += torch.linalg.matrix_norm(found.float(), ord=2).flatten().tolist()
        singular = torch.linalg.svdvals(a.double()).flatten(0, 1)  # (H,m)
        norms["A, the inverted matrix"] += singular[:, 0].tolist()
        norms["exact inverse of A"] += [1 / min(s[s > ROUNDING * s[0]]).item() for s in singular]
        inner.extend(a.flatten(0, 1))
    steps = attention.pinv.keywords.get("steps") if isinstance(attention.pinv, partial) else None
    return InvertedLayer(symmetric=isinstance(attention, Soft), steps=steps, inner=inner, norms=norms, **about)


def variants(attention: Attention) -> dict[str, Attention]:
    """Copy a mechanism: SOFT with and without the normalisation of SOFT++, each other one alone.

    The one of SOFT and SOFT++ that the mechanism is not has the published inverse.
    """
    if not isinstance(attention, Soft):
        return {"": copy.copy(attention)}
    both = {name: copy.copy(attention) for name in PUBLISHED}
    for name, one in both.items():
        one.normalise = name == "SOFT++"
        one.pinv = attention.pinv if one.normalise == attention.normalise else PUBLISHED[name]
    return both


def taken(attention: Attention, arguments: dict) -> tuple[Tensor, Tensor, Tensor]:
    """Call a copy of a mechanism, whose ``pinv`` is exchanged, with the identity as values; keep what it inverts.

    Returns:
        The inverted matrix A (N,H,m,m), its inverse X, that of SOFT++ as D^-½ X D^-½ with the row sums D of A, and the
        matrix that multiplies the values (N,H,L,L).
    """
    own, kept = attention.pinv, []

    def inverse(a: Tensor) -> Tensor:
        kept[:] = [a, own(a)]
        return kept[1]

    if isinstance(attention, CUR):
        attention.options = replace(attention.options, pinv=inverse)
    else:
        attention.pinv = inverse
    whole = matrix(attention, arguments)
    a, x = kept
    if isinstance(attention, Soft) and attention.normalise:
        d = a.sum(-1, keepdim=True).rsqrt()
        x = d * x * d.mT
    return a, x, whole
