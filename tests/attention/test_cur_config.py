"""attn.class_token of every CUR word follows model.pool; the choice that is recorded is the resolved one."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import MECHANISMS, config

from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.config.compose import compose
from lra.ops import cur
from lra.runs.folder import RunFolder
from lra.runs.restore import configuration, unflatten
from lra.studies.graft import TransferOptions, experiments

WORDS = [name for name in MECHANISMS if "cur_" in name]


def class_tokens(model):
    return [module.options.class_token for module in model.modules() if isinstance(module, CUR | CURPlus)]


@pytest.mark.parametrize("pool", ["mean", "cls", "flatten"])
@pytest.mark.parametrize("name", WORDS)
def test_the_class_token_is_kept_where_it_is_pooled(name, pool):
    model = config(name, f"model.pool={pool}", "attn.count=8").classifier()
    assert class_tokens(model) == [pool == "cls"] * 2


@pytest.mark.parametrize("name", ["cur_abs", "cur_embed", "cur_random", "mega_cur_sum"])
def test_rows_and_columns_of_a_pooled_class_token_hold_it(name, monkeypatch):
    """However little it scores."""
    torch.manual_seed(0)
    model = config(name, "model.pool=cls", "attn.count=2").classifier().eval()
    seen, select = [], cur.select

    def recorded(*args, **options):
        seen.extend(select(*args, **options))
        return tuple(seen[-2:])

    monkeypatch.setattr(cur, "select", recorded)
    mask = torch.arange(40) < torch.tensor([40, 11, 1, 0])[:, None, None]
    model(torch.randint(1, 16, (4, 1, 40)), mask)
    assert len(seen) == 4 and all((kept == 0).any(-1).all() for kept in seen)


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
        run = RunFolder(path=Path("x"), choices=choices, seed=0, record=SimpleNamespace(**told))
        assert configuration(run, "data").attn.get("class_token") is False
        assert unflatten(choices)["attn"]["class_token"] is False
        for word, expected in (None, pool == "cls"), ("true", True), ("false", False):
            said = [f"attn.class_token={word}"] if word else []
            target = experiments(run, compose(TransferOptions, ["run=x", "attn=cur_plus", *said]))[1]
            assert target.attn.get("class_token") is expected
    labels = [
        compose(TransferOptions, ["run=x", "attn=cur_abs", f"attn.class_token={w}"]).label for w in ("true", "false")
    ]
    assert labels == ["cur_abs-class_token=True", "cur_abs-class_token=False"]
