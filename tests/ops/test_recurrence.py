"""Chunked recurrences against the token-by-token reference, the released code, finite differences and exact sums."""

import json
import os
from pathlib import Path

import pytest
import torch
from conftest import config
from jaxtyping import TypeCheckError
from torch.nn.functional import logsigmoid, normalize, silu, softplus

from lra.bench.measure import peak_bytes
from lra.ops import recurrence
from lra.reference import delta_rule, gated_linear_attention, retention, selective_scan

RELEASED = json.loads((Path(__file__).parent / "recurrent_waves.json").read_text())["outputs"]
REFERENCES = {
    "scalar_decay_attention": retention,
    "channel_decay_attention": gated_linear_attention,
    "delta_rule_attention": delta_rule,
    "selective_scan": selective_scan,
    "diagonal_recurrence": selective_scan,
}
OPERATORS = list(REFERENCES)
# Strength of the gates: logsigmoid(gate x + shift). Weak gates remember thousands of tokens, strong ones less than one.
GATES = {"weak": (0.1, 6.0), "medium": (1.0, 0.0), "strong": (10.0, 0.0)}


def inputs_of(name, length, gate="medium", *, dtype=torch.float64, heads=2, dim=4, keys="random", beta=1.0, seed=0):
    """Random inputs of an operator."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    factor, shift = GATES[gate]
    gates = lambda *shape: logsigmoid(factor * draw(*shape) + shift)
    rows = (2, heads, length)
    if name == "selective_scan":
        delta = softplus(draw(2, length, dim) - 2)
        B, C = draw(2, length, 3), draw(2, length, 3)
        tensors = [draw(2, length, dim), delta, -factor * draw(dim, 3).exp(), B, C]
    elif name == "diagonal_recurrence":
        tensors = [gates(2, length, dim), draw(2, length, dim)]
    else:
        q, k, v = draw(*rows, dim), draw(*rows, dim), draw(*rows, dim + 1)
        if name == "scalar_decay_attention":
            tensors = [q, k, v, gates(*rows)]
        elif name == "channel_decay_attention":
            tensors = [q, k, v, gates(*rows, dim)]
        else:
            if keys == "equal":
                k = k[:, :, :1].expand(k.shape)
            tensors = [q, normalize(k, dim=-1), v, torch.full(rows, beta, dtype=torch.float64), gates(*rows)]
    return [x.to(dtype) for x in tensors]


def relative(result, exact):
    return ((result.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", OPERATORS)
def test_chunks_equal_the_recurrence_token_by_token(name, gate, bidirectional):
    """Also at lengths around a chunk, and for gradients of all inputs."""
    reference = getattr(REFERENCES[name], name + "_two_sided" if bidirectional else name)
    operator = getattr(recurrence, name)
    for length in (1, 63, 64, 65, 200):
        tensors = [x.requires_grad_() for x in inputs_of(name, length, gate)]
        exact = reference(*tensors)
        result = operator(*tensors, bidirectional=bidirectional)
        upstream = torch.linspace(-1, 1, exact.numel(), dtype=exact.dtype).view_as(exact)
        exact_gradients = torch.autograd.grad(exact, tensors, upstream, materialize_grads=True)
        gradients = torch.autograd.grad(result, tensors, upstream, materialize_grads=True)
        for value, expected in zip((result, *gradients), (exact, *exact_gradients), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("keys", ["random", "equal"])
def test_the_delta_rule_with_repeated_keys(keys, beta):
    """A key that comes again is erased by beta 1 and reflected by beta 2; powers of A would overflow here."""
    tensors = inputs_of("delta_rule_attention", 200, "weak", keys=keys, beta=beta)
    exact = delta_rule.delta_rule_attention(*tensors)
    single = recurrence.delta_rule_attention(*[x.float() for x in tensors])
    assert relative(recurrence.delta_rule_attention(*tensors), exact) < 1e-12
    # Reflections add up: the condition of I + A grows with the chunk's 64 tokens.
    assert relative(single, exact) < (64 if beta == 2 else 8) * 2**-20
    without_decay = tensors[:4]
    exact = delta_rule.delta_rule_attention(*without_decay)
    assert relative(recurrence.delta_rule_attention(*without_decay), exact) < 1e-12


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_by_differences(name, bidirectional):
    tensors = [x.requires_grad_() for x in inputs_of(name, 7, heads=1, dim=2)]
    options = {} if name in ("selective_scan", "diagonal_recurrence") else {"chunk": 4}
    operator = getattr(recurrence, name)
    assert torch.autograd.gradcheck(lambda *x: operator(*x, bidirectional=bidirectional, **options), tensors)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", OPERATORS)
def test_single_precision(name, gate):
    """A sum G of logarithms is rounded to 2^-24 |G|, and exp(G) is off by that much, relatively."""
    tensors = inputs_of(name, 512, gate, dim=16)
    exact = getattr(recurrence, name)(*tensors)
    single = getattr(recurrence, name)(*[x.float() for x in tensors])
    factor, shift = GATES[gate]
    largest_sum = 64 * abs(logsigmoid(torch.tensor(-3 * factor + shift)).item())
    assert single.dtype == torch.float32
    assert relative(single, exact) < (8 + largest_sum) * 2**-24


@pytest.mark.parametrize("name", OPERATORS)
def test_sixteen_bits_are_computed_in_float32(name):
    tensors = [x.bfloat16() for x in inputs_of(name, 70)]
    result = getattr(recurrence, name)(*tensors)
    assert torch.equal(result, getattr(recurrence, name)(*[x.float() for x in tensors]))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_masked_token_is_the_identity(name, bidirectional):
    """Zero writes and zero logarithms of decays: as if the token were not there."""
    positions = torch.tensor([0, 1, 3, 4, 6, 9])
    short = inputs_of(name, len(positions))
    time = 1 if name in ("selective_scan", "diagonal_recurrence") else 2

    def spread(x):
        shape = list(x.shape)
        shape[time] = 80
        return x.new_zeros(shape).index_copy(time, positions, x)

    long = [x if name == "selective_scan" and x.ndim == 2 else spread(x) for x in short]
    operator = getattr(recurrence, name)
    result = operator(*long, bidirectional=bidirectional).index_select(time, positions)
    torch.testing.assert_close(result, operator(*short, bidirectional=bidirectional))


def waves(shape, seed):
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(index * (1 + seed / 7) ** 2 + seed).reshape(shape)


def released_inputs(case):
    """Our result for the inputs of the released code: see ``recurrent_waves.json``."""
    q, k, v = (waves((2, 2, 7, 4), seed) for seed in (1, 2, 3))
    gate, beta = logsigmoid(3 * waves((2, 2, 7), 4)), waves((2, 2, 7), 6).sigmoid()
    unit = k / k.norm(dim=-1, keepdim=True)
    if case == "simple_gla":
        return recurrence.scalar_decay_attention(q, k, v, gate)
    if case == "gla":
        return recurrence.channel_decay_attention(q, k, v, logsigmoid(3 * waves((2, 2, 7, 4), 5)))
    if case != "selective_scan":
        return recurrence.delta_rule_attention(q, unit, v, beta, gate if case == "gated_delta_rule" else None)
    # The released scan has channels in front of time, softplus(delta + bias), D u and a gate silu(z).
    u, delta, z = (waves((2, 6, 7), seed).mT for seed in (1, 2, 7))
    B, C = (waves((2, 4, 7), seed).mT for seed in (4, 5))
    scan = recurrence.selective_scan(u, softplus(delta + waves((6,), 8)), -waves((6, 4), 3).exp(), B, C)
    return ((scan + waves((6,), 6) * u) * silu(z)).mT


@pytest.mark.parametrize("case", ["simple_gla", "gla", "delta_rule", "gated_delta_rule", "selective_scan"])
def test_released_code(case):
    expected = torch.tensor(RELEASED[case], dtype=torch.float64)
    torch.testing.assert_close(released_inputs(case).flatten(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["mamba", "rg_lru"])
def test_torch_compile_leaves_the_loops_over_tokens_alone(name):
    """The compiled graphs are as large for 70 tokens as for 35, and the model's outputs and gradients are the same."""
    num_nodes = {}
    for length in (35, 70):
        num_nodes[length] = 0

        def count(graph, _, length=length):
            num_nodes[length] += len(graph.graph.nodes)
            return graph

        words = (f"task.length={length}", "model.dim=8", "model.layers=1", "model.dropout=0")
        model, tokens = config(name, *words).classifier(), torch.arange(1, length + 1)[None, None] % 9
        mask = tokens != 3
        torch._dynamo.reset()
        results = [forward(tokens, mask) for forward in (model, torch.compile(model, backend=count))]
        gradients = [torch.autograd.grad(result.square().sum(), list(model.parameters())) for result in results]
        torch.testing.assert_close([results[1], *gradients[1]], [results[0], *gradients[0]])
    assert num_nodes[35] == num_nodes[70] > 0


def test_memory_of_the_selective_scan_is_that_of_every_32nd_state():
    u, delta, A, B, C = inputs_of("selective_scan", 2048, dtype=torch.float32, dim=64)
    tensors = [x.requires_grad_() for x in (u, delta, A, B, C)]
    all_states = 4 * 2 * 2048 * 64 * 3
    small = 4 * 2 * 2048 * (64 + 3) * 2
    peak = peak_bytes(lambda: recurrence.selective_scan(*tensors).sum().backward())
    assert peak < 6 * small + all_states / 4


def test_a_chunk_is_a_power_of_two():
    tensors = inputs_of("channel_decay_attention", 5)
    with pytest.raises(ValueError, match="chunk must be a power of two, got 48"):
        recurrence.channel_decay_attention(*tensors, chunk=48)


@pytest.mark.skipif(os.environ.get("LRA_CHECK_SHAPES", "1") != "1", reason="shapes are not checked")
def test_a_wrong_shape_fails_where_it_enters():
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    log_decay = torch.zeros(1, 2, 8)
    recurrence.scalar_decay_attention(q, k, v, log_decay)
    with pytest.raises(TypeCheckError, match="scalar_decay_attention"):
        recurrence.scalar_decay_attention(q, k[:, :, 1:], v, log_decay)
    with pytest.raises(TypeCheckError, match="log_decay"):
        recurrence.scalar_decay_attention(q, k, v, log_decay[..., None])
