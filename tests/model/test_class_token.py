"""The readings model.pool=class and last: what reaches them, and that packed rows have the same."""

import pytest
import torch
from conftest import KERNELS, MECHANISMS, config, experiment

LENGTH, ALLOWANCE = 128, 16
BOARD = (
    "budget=quick",
    f"task.length={LENGTH}",
    f"+budgets.quick.allowance={ALLOWANCE}",
    "model.pool=class",
    "model.dropout=0",
    "model.head={_target_: lra.model.classifier.Head, _partial_: true, kind: gelu}",
)
# Mechanisms of two layers that do not bring the last token to the class token, and why.
OUT_OF_REACH = {
    "none": "no token sees another one",
    "conv": "two kernels reach 10 tokens to either side",
    "local": "no token sees another block",
    "local_strided": "no token sees another group",
    "longformer": "two windows reach 16 tokens to either side",
    "sparse": "at stride 11 the last token is in neither the band nor the columns of two layers",
}
FADED = {  # in reach, but with a gradient below 1e-6 of the class output
    "mega_chunk": "only the moving average connects chunks",
    "reformer_official": "the class token attends to few others",
}


def model(name, *words):
    torch.manual_seed(0)
    adding = experiment("task=adding", "attn=sdpa", *BOARD, *(word for word in words if word.startswith("model.")))
    bias = ["block.bias=false"] if name.startswith("mega_cur") else []
    made = config(name, *BOARD, *bias, *words)  # composed for other tests too, with another task
    return made.changed(task=adding.task, model=adding.model).classifier().eval()


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in KERNELS])
def test_the_last_token_reaches_the_class_token(name):
    if name == "nystrom_original":
        with pytest.raises(ValueError, match=f"landmarks must divide length {LENGTH + 1}"):
            model(name)
        return
    x = torch.randn(2, 1, LENGTH, 2, requires_grad=True)
    model(name)(x).sum().backward()
    reach = x.grad[:, 0, -1].abs().max().item()
    if name in OUT_OF_REACH:
        assert reach == 0, "no longer out of reach"
    else:
        assert reach > (0 if name in FADED else 1e-6)


@pytest.mark.parametrize(
    "words", [("attn=s4d_lin",), ("attn=s4d_lin", "block=glu"), ("attn=mean", "block=mega", "block.bias=false")]
)
@pytest.mark.parametrize("pool", ["class", "last"])
def test_blocks_of_other_mechanisms_take_the_readings_of_the_board(words, pool):
    made = model(words[0].removeprefix("attn="), *words[1:], f"model.pool={pool}").train()
    made(torch.randn(2, 1, LENGTH, 2)).sum().backward()
    got = {name for name, p in made.named_parameters() if p.grad is not None and p.grad.isfinite().all()}
    unused = {f"blocks.{i}.qk_{part}" for i in (0, 1) for part in ("scale", "shift")}  # a mean has no queries and keys
    assert {name for name, _ in made.named_parameters()} - got == (unused if "attn=mean" in words else set())


@pytest.mark.parametrize("pool", ["class", "last"])
def test_a_reading_is_that_of_the_row_alone_padded_and_packed(pool):
    lengths, ids = (16, 9, 2), torch.randint(1, 30, (3, 1, 16), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(16) < torch.tensor(lengths)[:, None, None]
    words = ("task=listops", "budget=smoke", f"model.pool={pool}")
    made = {}
    for pad in ("batch", "none"):
        torch.manual_seed(0)
        made[pad] = config("sdpa", *words, f"data.pad={pad}").classifier().double().eval()
    together = made["batch"](ids, mask)
    alone = torch.cat([made["batch"](ids[i : i + 1, :, :n]) for i, n in enumerate(lengths)])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(made["none"](ids, mask), alone)
