"""Tasks and models that phase one cannot be made of, refused before anything is written."""

from omegaconf import DictConfig

from ..model.classifier import Classifier


def check(config: DictConfig, model: Classifier) -> None:
    """Check that a configuration can be pretrained as it says; one without pretraining can.

    Args:
        config: of the run.
        model: its classifier, perhaps without memory for its weights.

    Raises:
        ValueError: inputs that are masked for good, a class token, a loss or mask id that the task has no use for, or
            a mechanism that sees the next token.
    """
    task, own = config.task, config.pretrain
    if own.objective == "none":
        return
    said, pixels = f"pretrain={own.objective}", task.display == "pixels"
    if task.masked_id is not None:
        reason = "which pixels are masked would tell the picture"
        raise ValueError(
            f"protocol.masked_pixel must be null with {said}, not {config.protocol.masked_pixel}: {reason}"
        )
    if config.model.pool in ("cls", "class"):
        raise ValueError(f"model.pool must be mean, last or flatten with {said}, not {config.model.pool}")
    if "features" in task and own.loss != "l1":
        raise ValueError(f"pretrain.loss must be l1 with task={task.name}, whose inputs are real numbers")
    if "vocab" in task and own.loss == "l1" and not pixels:
        raise ValueError(f"pretrain.loss must be cross_entropy with task={task.name}, whose inputs are no grey levels")
    if own.get("mask_id") == "padding" and (pixels or "features" in task):
        raise ValueError(f"pretrain.mask_id must be own with task={task.name}, which has no id of padding")
    if own.objective == "next" and not all(_causal(block) for block in model.blocks):
        raise ValueError(f"pretrain=next: {config.label} sees the tokens ahead; {_remedy(config)}")


def _causal(block) -> bool:
    """Whether a block passes nothing from a token to those before it; one that is more than a mixer may."""
    return getattr(getattr(block, "mixer", None), "causal", False)


def _remedy(config: DictConfig) -> str:
    if config.attn.get("causal") is False:
        return "say attn.causal=true"
    if config.attn.get("bidirectional"):
        return "say attn.bidirectional=false"
    causal = "sdpa, linear, conv, sparse with attn.causal=true"
    return f"{causal} and s4d_*, s5, lru, long_conv with attn.bidirectional=false do not"
