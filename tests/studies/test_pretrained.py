"""The study of pretrained encoders: functions compared with numpy, and the commands on a tiny BERT and toy reviews."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from server import assert_error, write_tar

pytestmark = pytest.mark.peers
transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed: make test-peers")
from lra.studies.dropin.__main__ import dropin  # noqa: E402
from lra.studies.encoder import load  # noqa: E402
from lra.studies.examples import draw_files  # noqa: E402
from lra.studies.pretrained import __main__  # noqa: E402 after importorskip

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "plot", "the"]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    path = tmp_path_factory.mktemp("reviews") / "reviews.tar.gz"
    rng = np.random.default_rng(0)
    files = {}
    for folder in ("train/neg", "train/pos", "train/unsup", "test/neg", "test/pos"):
        last_word = {"neg": "bad", "pos": "good", "unsup": "film"}[folder.partition("/")[2]]
        for i in range(12):
            words = [*rng.choice(["film", "plot", "the"], rng.integers(3, 30)), last_word]
            files[f"reviews/{folder}/{i}.txt"] = " ".join(words).encode()
    write_tar(path, files)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    result = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=len(WORDS)))
    for parameter in result.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    result.save_pretrained(folder)
    return folder


def test_examples_are_balanced_and_labelled_by_folder_name(reviews, tmp_path):
    contents, labels = draw_files(reviews, "train", 10, 0)
    assert labels.bincount().tolist() == [5, 5] and len(set(contents)) == 10
    assert [b"good" in content for content in contents] == labels.bool().tolist()
    assert draw_files(reviews, "train", 10, 0)[0] == contents != draw_files(reviews, "train", 10, 1)[0]
    assert_error("2 classes of 12 or more files in train/<class>/; train=26", draw_files, reviews, "train", 26, 0)
    assert_error("drawn=9 must be a multiple of the number of classes", draw_files, reviews, "test", 9, 0, "drawn")
    (tmp_path / "cut.tar.gz").write_bytes(reviews.read_bytes()[:-500])
    assert_error("cut.tar.gz cannot be read as a tar file", draw_files, tmp_path / "cut.tar.gz", "test", 2, 0)


def test_probe_gradient_is_zero_and_nearest_matches_numpy():
    g = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(60, 5, generator=g, dtype=torch.float64), dim=-1)
    labels = torch.randint(3, (60,), generator=g)
    linear = __main__.fit_probe(features.float(), labels).double()
    loss = F.cross_entropy(linear(features), labels) + 1e-3 * linear.weight.square().sum()
    assert max(g.abs().max() for g in torch.autograd.grad(loss, list(linear.parameters()))) < 1e-3
    queries = F.normalize(torch.randn(20, 5, generator=g, dtype=torch.float64), dim=-1)
    expected = []
    for row in (queries @ features.T).numpy():
        neighbours = np.argsort(-row)[:7]
        expected.append(np.argmax([row[neighbours][labels.numpy()[neighbours] == c].sum() for c in range(3)]))
    assert __main__.classify_by_neighbours(features, labels, queries, 7).tolist() == expected


@pytest.fixture
def command(bert, reviews, call):
    """Run the study on the tiny BERT and the toy reviews: returns exit message and stderr."""
    few = ("train=20", "test=10", "batch=10", "neighbours=5", f"model={bert}", f"examples={reviews}")
    return lambda *words: call(__main__.pretrained, *few, *words)[::2]


def test_pretrained_command_records_scores_before_and_after_distillation(command, tmp_path):
    words = ["length=40", "selections=[step,plus]", "counts=[3,40]", "steps=30", "lr=1e-3"]
    exit_message, log = command(*words, f"out={tmp_path / 'new' / 'results.json'}")
    assert exit_message is None, log
    results = [SimpleNamespace(**row) for row in json.loads((tmp_path / "new/results.json").read_text())]
    words = [(word, count, tuned) for word in ("step", "plus") for count in (3, 40) for tuned in (0, 30)]
    assert [(r.attention, r.count, r.tuned) for r in results] == [("exact", None, 0), *words]
    exact, few, tuned = results[:3]
    # count=40 is the whole sequence, so CUR+ is exact.
    assert results[7].attention == "plus" and results[7].cosine == pytest.approx(1, abs=1e-5)
    assert exact.cosine == pytest.approx(1, abs=1e-5) and {r.n for r in results} == {10}
    assert few.cosine < tuned.cosine < 1 and (tmp_path / "new/results.png").read_bytes().startswith(b"\x89PNG")


def test_captured_queries_and_keys_reproduce_model_attention(bert, reviews):
    encoder = load(bert, pool="mean", length=9, size=0, device="cpu")
    (text, *_), _ = draw_files(reviews, "test", 2, 0)
    layers = encoder.qkv(text)
    words = encoder.tokenizer(text.decode(), truncation=True, max_length=9, return_tensors="pt")
    encoder.model.set_attn_implementation("eager")
    attentions = encoder.model(**words, output_attentions=True).attentions
    assert len(layers) == len(attentions) == 2
    for (q, k, v), expected in zip(layers, attentions, strict=True):
        assert q.shape == v.shape == (1, 2, words["input_ids"].shape[1], 16)
        torch.testing.assert_close((q @ k.mT / 4).softmax(-1), expected)


def test_dropin_command_on_pretrained_encoder(bert, reviews, tmp_path, call):
    words = [f"model={bert}", f"examples={reviews}", f"runs={tmp_path}", "drawn=24", "cost=0", "sources=[]", "n=3"]
    words += ["counts=[4]", "candidates=[cur_plus]"]
    assert call(dropin, *words, "length=12")[0] is None
    result = json.loads((tmp_path / "dropin" / f"{bert.name}-12" / "errors.json").read_text())
    about = f"{bert}, reviews.tar.gz, 24 drawn, 2 layers of 2 heads, 12 tokens"
    assert (result["n"], result["about"]) == (3, about)
    assert 0 < result["values"]["cur_plus"]["4"][0] < result["values"]["cur_step"]["4"][0]
    assert "0 of drawn=24 examples are texts that fill length=500, but n=3" in call(dropin, *words, "length=500")[0]


def test_invalid_option_error_names_option(command):
    assert "out=cur.png is the path of the figure; name a .json file" in command("batch=5", "out=cur.png")[0]
    assert "model=/nowhere cannot be loaded" in command("batch=5", "model=/nowhere")[0]
