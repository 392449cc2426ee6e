"""Recurrences and state-space models: chunks and convolutions against token-by-token sums, precision and memory."""

import itertools
from functools import partial

import pytest
import torch
from conftest import CHECK_SHAPES, assert_error, config
from jaxtyping import TypeCheckError
from support.features import same_with_gradients
from torch.nn.functional import logsigmoid, normalize, softplus

from lra.bench.measure import peak_bytes
from lra.ops import recurrence
from lra.ops.diagonal_recurrence import diagonal_scan
from lra.ops.ssm import hippo_legs, long_conv, pack_bidirectional, s4d_kernel
from lra.reference import decay_attention, delta_rule, selective_scan

# Operators of token vectors (N,L,D); the others have heads (N,H,L,D).
SCANS = ("selective_scan", "diagonal_recurrence")
REFERENCES = dict.fromkeys(["scalar_decay_attention", "channel_decay_attention"], decay_attention)
REFERENCES |= {"delta_rule_attention": delta_rule, **dict.fromkeys(SCANS, selective_scan)}
# (factor, shift) of logsigmoid(factor x + shift): weak gates remember thousands of tokens, strong gates less than one.
GATES = {"weak": (0.1, 6.0), "medium": (1.0, 0.0), "strong": (10.0, 0.0)}
OPERATORS = pytest.mark.parametrize("name", REFERENCES)
H, M = 3, 4


def normal_sampler(seed=0):
    """Return a function that draws normal float64 tensors of a given shape."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def draw_inputs(name, length, gate="medium", *, dtype=torch.float64, dim=4, keys="random", beta=1.0):
    draw = normal_sampler()
    factor, shift = GATES[gate]
    gates = lambda *shape: logsigmoid(factor * draw(*shape) + shift)
    shape = (2, 2, length)
    if name == "selective_scan":
        delta = softplus(draw(2, length, dim) - 2)
        B, C = draw(2, length, 3), draw(2, length, 3)
        tensors = [draw(2, length, dim), delta, -factor * draw(dim, 3).exp(), B, C]
    elif name == "diagonal_recurrence":
        tensors = [gates(2, length, dim), draw(2, length, dim)]
    else:
        q, k, v = draw(*shape, dim), draw(*shape, dim), draw(*shape, dim + 1)
        if name == "scalar_decay_attention":
            tensors = [q, k, v, gates(*shape)]
        elif name == "channel_decay_attention":
            tensors = [q, k, v, gates(*shape, dim)]
        else:
            if keys == "equal":
                k = k[:, :, :1].expand(k.shape)
            tensors = [q, normalize(k, dim=-1), v, torch.full(shape, beta, dtype=torch.float64), gates(*shape)]
    return [x.to(dtype) for x in tensors]


def relative_error(result, exact):
    return ((result.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("gate", GATES)
@OPERATORS
def test_operators_match_token_by_token_recurrence(name, gate, bidirectional, monkeypatch):
    """Covers lengths around the chunk size of 64, masked tokens, and the gradients of all inputs."""
    plain_name = name.removeprefix("scalar_").removeprefix("channel_")
    reference = getattr(REFERENCES[name], plain_name + "_two_sided" * bidirectional)
    operator = partial(getattr(recurrence, name), bidirectional=bidirectional)
    small_chunks = {} if name in SCANS else {"chunk": 4}
    for length, options in ((1, {}), (63, {}), (64, {}), (65, {}), (200, {}), (7, small_chunks), (130, {})):
        # The selective scan handles the longest sequences one by one, as if the batch did not fit into the cache, and
        # the last ones in long blocks, as on a GPU.
        if length == 200:
            monkeypatch.setattr("lra.ops.selective_scan.CPU_STATES", 1)
        if length == 130:
            monkeypatch.setattr("lra.ops.selective_scan.block_length", lambda state: 50)
        tensors = draw_inputs(name, length, gate)
        # Masked tokens have zero inputs and zero log decays; the matrix A of ``selective_scan`` is of no token.
        for x in tensors:
            if x.ndim > 2:
                x.index_fill_(1 if name in SCANS else 2, torch.arange(length)[3::9], 0.0)
        tensors = [x.requires_grad_() for x in tensors]
        exact = reference(*tensors)
        result = operator(*tensors, **options)
        upstream = torch.linspace(-1, 1, exact.numel(), dtype=exact.dtype).view_as(exact)
        exact_gradients = torch.autograd.grad(exact, tensors, upstream, materialize_grads=True)
        gradients = torch.autograd.grad(result, tensors, upstream, materialize_grads=True)
        torch.testing.assert_close((result, *gradients), (exact, *exact_gradients), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("keys", ["random", "equal"])
def test_delta_rule_with_repeated_keys_is_accurate(keys, beta):
    """A repeated key is erased by beta = 1 and reflected by beta = 2; powers of A would overflow here."""
    tensors = draw_inputs("delta_rule_attention", 200, "weak", keys=keys, beta=beta)
    # With and without decay.
    for inputs in (tensors, tensors[:4]):
        exact = delta_rule.delta_rule_attention(*inputs)
        assert relative_error(recurrence.delta_rule_attention(*inputs), exact) < 1e-12
    exact = delta_rule.delta_rule_attention(*tensors)
    float32_out = recurrence.delta_rule_attention(*[x.float() for x in tensors])
    # With reflections the condition number of I + A grows with the 64 tokens of a chunk.
    assert relative_error(float32_out, exact) < (64 if beta == 2 else 8) * 2**-20


@pytest.mark.parametrize("gate", GATES)
@OPERATORS
def test_float32_error_is_bounded_by_log_decay_sum(name, gate):
    """A sum G of log decays is rounded by 2^-24 |G|, which is the relative error of exp(G)."""
    tensors = draw_inputs(name, 512, gate, dim=16)
    exact = getattr(recurrence, name)(*tensors)
    float32_out = getattr(recurrence, name)(*[x.float() for x in tensors])
    factor, shift = GATES[gate]
    largest_sum = 64 * abs(logsigmoid(torch.tensor(-3 * factor + shift)).item())
    assert float32_out.dtype == torch.float32
    assert relative_error(float32_out, exact) < (8 + largest_sum) * 2**-24


@OPERATORS
def test_bfloat16_inputs_are_computed_in_float32(name):
    tensors = [x.bfloat16() for x in draw_inputs(name, 70)]
    assert torch.equal(getattr(recurrence, name)(*tensors), getattr(recurrence, name)(*[x.float() for x in tensors]))


@pytest.mark.parametrize("name", ["mamba", "rg_lru", "mamba2", "gla", "delta_net", "s5"])
def test_compiled_graph_size_is_independent_of_length(name):
    """The graphs have as many nodes for 140 tokens as for 70, so loops are not unrolled; results match eager mode."""
    num_nodes = {}
    # The scan of mamba runs outside of the graph; the other recurrences are operators of it.
    is_operator = name != "mamba"
    for length in (70, 140):
        num_nodes[length] = 0

        def count(graph, _, length=length):
            num_nodes[length] += len(graph.graph.nodes)
            return graph

        mixer = config(name, f"task.length={length}", "model.dim=8", "model.dropout=0").block_factory()().mixer
        x, mask = torch.randn(1, length, 8), torch.arange(length)[None] % 9 != 3
        torch._dynamo.reset()
        results = [forward(x, mask) for forward in (mixer, torch.compile(mixer, backend=count, fullgraph=is_operator))]
        gradients = [torch.autograd.grad(result.square().sum(), list(mixer.parameters())) for result in results]
        torch.testing.assert_close([results[1], *gradients[1]], [results[0], *gradients[0]])
    assert num_nodes[70] == num_nodes[140] > 0


def test_chunk_must_be_power_of_two():
    tensors = draw_inputs("channel_decay_attention", 5)
    assert_error("chunk must be a power of two, got 48", recurrence.channel_decay_attention, *tensors, chunk=48)


@pytest.mark.skipif(not CHECK_SHAPES, reason="shapes are not checked")
def test_wrong_shape_raises_type_check_error():
    q, k, v, log_decay = draw_inputs("scalar_decay_attention", 8)
    for inputs in ((q, k[:, :, :7], v, log_decay), (q, k, v, log_decay[..., None])):
        with pytest.raises(TypeCheckError, match="scalar_decay_attention"):
            recurrence.scalar_decay_attention(*inputs)


def test_selective_scan_stores_every_32nd_state():
    tensors = [x.requires_grad_() for x in draw_inputs("selective_scan", 2048, dtype=torch.float32, dim=64)]
    all_states = 4 * 2 * 2048 * 64 * 3
    input_bytes = 4 * 2 * 2048 * (64 + 3) * 2
    assert peak_bytes(lambda: recurrence.selective_scan(*tensors).sum().backward()) < 6 * input_bytes + all_states / 4
    # Between the passes, views of a block would keep its states.
    node, _ = recurrence.selective_scan(*tensors).grad_fn.next_functions[0]
    assert sum(start.untyped_storage().nbytes() for start in node.starts) == all_states / 32


def test_selective_scan_takes_few_operators_in_long_blocks(monkeypatch):
    """On a GPU an operator of PyTorch is at least one kernel launch."""
    tensors = [x.requires_grad_() for x in draw_inputs("selective_scan", 1024, dtype=torch.float32, dim=8)]
    counts = []
    for block in (32, 1024):
        monkeypatch.setattr("lra.ops.selective_scan.block_length", lambda state, block=block: block)
        with torch.profiler.profile() as profile:
            recurrence.selective_scan(*tensors).sum().backward()
        counts.append(sum(event.name == "aten::addcmul" for event in profile.events()))
    assert counts == [3 * 1024 - 32, 3 * 31]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 256, 300])
def test_diagonal_scan_matches_recurrence(length, reverse):
    """Covers one chunk of 16, full and partial chunks, and chunks of chunks."""
    radius, phase = torch.rand(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    decay = torch.polar(radius, 6 * phase).requires_grad_()
    inputs = torch.view_as_complex(normal_sampler()(2, length, 5, 2)).requires_grad_()
    state = torch.zeros(2, 5, dtype=torch.complex128)
    states = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        state = decay * state + inputs[:, t]
        states[t] = state
    same_with_gradients(diagonal_scan(decay, inputs, reverse=reverse), torch.stack(states, 1), (decay, inputs))


def test_diagonal_scan_saves_only_decay_and_states():
    decay, inputs = (torch.rand(shape, dtype=torch.complex128, requires_grad=True) for shape in ((M,), (2, 500, M)))
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        diagonal_scan(decay, inputs)
    assert sum(sizes) == decay.numel() + inputs.numel()


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
def test_s4d_kernel_float32_error(discretisation):
    """The phase l Δ ω has a relative error of 2^-24; as it grows with l, the term that it rotates decays."""
    draw = normal_sampler()
    parameters = [draw(H) - 3, draw(H, M) - 1, 4 * draw(H, M), torch.complex(draw(H, M), draw(H, M))]
    exact = s4d_kernel(*parameters, 2000, discretisation=discretisation)
    rounded = [x.to(torch.complex64 if x.is_complex() else torch.float32) for x in parameters]
    assert (s4d_kernel(*rounded, 2000, discretisation=discretisation) - exact).abs().max() < 2e-5 * exact.abs().max()


def test_s4d_kernel_memory_is_below_an_eighth_of_all_powers():
    """With 256 channels, 32 states and 16,384 lags, exp(l Δ A) alone takes 1.07 GB of complex64."""
    channels, states, length = 256, 32, 16_384
    leaves = [torch.full((channels,), -5.0), torch.zeros(channels, states), torch.rand(channels, states) * 100]
    leaves = [x.requires_grad_() for x in (*leaves, torch.randn(channels, states, dtype=torch.complex64))]
    assert peak_bytes(lambda: s4d_kernel(*leaves, length).sum().backward()) < 8 * channels * states * length / 8


@pytest.mark.parametrize("n", [1, 2, 8, 33])
def test_hippo_legs_diagonalises_normal_part(n):
    """The expected S = A + P Pᵀ is built entry by entry."""
    S = torch.zeros(n, n, dtype=torch.complex128)
    for i, j in itertools.product(range(n), repeat=2):
        A = -((2 * i + 1) ** 0.5) * (2 * j + 1) ** 0.5 if i > j else -(i + 1) if i == j else 0
        S[i, j] = A + ((i + 0.5) * (j + 0.5)) ** 0.5
    values, vectors = hippo_legs(n)
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.mH, S, rtol=1e-10, atol=1e-10 * n)
    torch.testing.assert_close(vectors @ vectors.mH, torch.eye(n).to(S), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values.imag, -values.imag.flip(0), rtol=1e-9, atol=1e-9)
    assert (values.real == -0.5).all()


def test_long_conv_computes_in_float32_inside_autocast():
    draw = normal_sampler(1)
    x, skip, kernels = draw(2, 9, H).bfloat16(), draw(H).float(), draw(2, H, 9).float()
    kernel = lambda _: pack_bidirectional(kernels)
    for mask in (draw(2, 9) < 0.5, None):
        with torch.autocast("cpu", torch.bfloat16):
            autocast_out = long_conv(x, skip, kernel, mask)
        torch.testing.assert_close(autocast_out, long_conv(x.float(), skip, kernel, mask), rtol=0, atol=0)
