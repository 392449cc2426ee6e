"""Labels with the outputs of another one."""

from conftest import config

from lra.sweep.aliases import aliases

WORDS = ("task=adding", "budget=quick", "task.length=64", "model.pool=class", "model.dropout=0")


def test_labels_that_compute_exact_attention_at_a_length_are_found_by_their_outputs():
    made = lambda name, *words: config(name, *WORDS, *words)
    configs = {
        "sdpa": made("sdpa"),
        "bigbird": made("bigbird", "attn.block=65"),
        "sinkhorn": made("sinkhorn", "attn.block=65"),
        "longformer": made("longformer", "attn.window=200"),
        "local": made("local", "attn.block=64"),
        "softmax": made("softmax", "attn.dropout=0"),
        "dropped": made("softmax"),
        "linear": made("linear"),
        "mean": made("mean"),
        "soft": made("soft", "attn.count=8"),
        "soft_fixed": made("soft_fixed", "attn.count=8"),
    }
    exact = dict.fromkeys(("bigbird", "sinkhorn", "longformer", "softmax"), "sdpa")
    assert aliases(configs) == exact | {"soft_fixed": "soft"}
