"""Tasks and models that phase one cannot be made of, refused before anything is written."""

from ..config.experiment import Experiment


def check(experiment: Experiment) -> None:
    """Check that a configuration can be pretrained as it says; one without pretraining can.

    Args:
        experiment: of the run.

    Raises:
        ValueError: inputs that are masked for good, a class token, a loss or mask id that the task has no use for, or
            a mechanism that sees the next token.
    """
    task, own = experiment.task, experiment.pretrain
    if own.objective == "none":
        return
    said, pixels = f"pretrain={own.objective}", task.display == "pixels"
    if task.masked_id is not None:
        reason = "which pixels are masked would tell the picture"
        raise ValueError(
            f"protocol.masked_pixel must be null with {said}, not {experiment.protocol.masked_pixel}: {reason}"
        )
    if experiment.model.pool in ("cls", "class"):
        raise ValueError(f"model.pool must be mean, last or flatten with {said}, not {experiment.model.pool}")
    if task.features is not None and own.loss != "l1":
        raise ValueError(f"pretrain.loss must be l1 with task={task.name}, whose inputs are real numbers")
    if task.vocab is not None and own.loss == "l1" and not pixels:
        raise ValueError(f"pretrain.loss must be cross_entropy with task={task.name}, whose inputs are no grey levels")
    if own.mask_id == "padding" and (pixels or task.features is not None):
        raise ValueError(f"pretrain.mask_id must be own with task={task.name}, which has no id of padding")
    if own.objective == "next" and not all(_causal(block) for block in experiment.sketch.blocks):
        raise ValueError(f"pretrain=next: {experiment.label} sees the tokens ahead; {_remedy(experiment)}")


def _causal(block) -> bool:
    """Whether a block passes nothing from a token to those before it; one that is more than a mixer may."""
    return getattr(getattr(block, "mixer", None), "causal", False)


def _remedy(experiment: Experiment) -> str:
    if experiment.attn.get("causal") is False:
        return "say attn.causal=true"
    if experiment.attn.get("bidirectional"):
        return "say attn.bidirectional=false"
    causal = "sdpa, linear, conv, sparse with attn.causal=true"
    return f"{causal} and s4d_*, s5, lru, long_conv with attn.bidirectional=false do not"
