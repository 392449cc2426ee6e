"""The readings model.pool=class and last, and attn.class_token of every CUR word, which follows the pool."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import KERNELS, MECHANISMS, config, experiment
from support.features import padded_ids

from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.config.compose import compose
from lra.runs.restore import configuration, unflatten
from lra.runs.run_dir import RunDir
from lra.studies.swap import TransferOptions, experiments

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


def model(name):
    torch.manual_seed(0)
    adding = experiment("task=adding", "attn=sdpa", *BOARD)
    bias = ["block.bias=false"] if name.startswith("mega_cur") else []
    made = config(name, *BOARD, *bias)  # composed for other tests too, with another task
    return made.replace(task=adding.task, model=adding.model).classifier().eval()


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


@pytest.mark.parametrize("word", ["model.pool=class", "model.pool=last", "model.positions=rotary"])
def test_a_row_has_the_same_result_alone_padded_and_packed(word):
    lengths, made = (16, 9, 2), {}
    ids, mask = padded_ids(lengths)
    for pad in ("batch", "none"):
        torch.manual_seed(0)
        made[pad] = config("sdpa", word, f"data.pad={pad}").classifier().double().eval()
    together = made["batch"](ids, mask)
    alone = torch.cat([made["batch"](ids[i : i + 1, :, :n]) for i, n in enumerate(lengths)])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(made["none"](ids, mask), alone)


WORDS = [name for name in MECHANISMS if "cur_" in name]


def class_tokens(model):
    return [module.options.class_token for module in model.modules() if isinstance(module, CUR | CURPlus)]


@pytest.mark.parametrize("pool", ["mean", "cls", "flatten"])
@pytest.mark.parametrize("name", WORDS)
def test_the_class_token_is_kept_where_it_is_pooled(name, pool):
    model = config(name, f"model.pool={pool}", "attn.count=8").classifier()
    assert class_tokens(model) == [pool == "cls"] * 2


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("said", [True, False])
def test_what_is_said_holds_and_is_part_of_the_label_if_it_changes_anything(pool, said):
    chosen = config("cur_plus", f"model.pool={pool}", f"attn.class_token={str(said).lower()}")
    assert class_tokens(chosen.classifier()) == [said] * 2
    assert chosen.label == ("cur_plus" if said == (pool == "cls") else f"cur_plus-class_token={said}")
    assert config("cur_plus", f"model.pool={pool}", "attn.count=8").label == "cur_plus-count=8"


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_choices_hold_what_it_comes_to(pool):
    said = config("cur_abs", f"model.pool={pool}", f"attn.class_token={str(pool == 'cls').lower()}")
    follows = config("cur_abs", f"model.pool={pool}").choices({})
    assert follows == said.choices({}) and follows["attn.class_token"] is (pool == "cls")


def test_a_transfer_follows_its_run_and_old_runs_stay_what_they_were():
    told = {"study": "s", "task": "listops", "protocol": "paper", "budget": "smoke", "label": "x", "seed": 0}
    for pool in ("mean", "cls"):
        choices = config("cur_abs", f"model.pool={pool}").choices({}) | {"attn.class_token": False}
        run = RunDir(path=Path("x"), choices=choices, seed=0, record=SimpleNamespace(**told))
        assert configuration(run, "data").attn.get("class_token") is False
        assert unflatten(choices)["attn"]["class_token"] is False
        for word, expected in (None, pool == "cls"), ("true", True), ("false", False):
            said = [f"attn.class_token={word}"] if word else []
            target = experiments(run, compose(TransferOptions, ["run=x", "attn=cur_plus", *said]))[1]
            assert target.attn.get("class_token") is expected
    label = lambda said: compose(TransferOptions, ["run=x", "attn=cur_abs", f"attn.class_token={said}"]).label
    assert [label("true"), label("false")] == ["cur_abs-class_token=True", "cur_abs-class_token=False"]
