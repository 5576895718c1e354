"""Every engine on every architecture, against the dense Fisher matrix."""

from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tangograd import TANGO, Categorical
from tangograd.adjoint import DisagreementError
from tangograd.engines import NAMES, CannotRunError, Site
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten
from tests.cases import set_velocity

from .models import CLASSES, MODELS, B

#: what "auto" chooses where it is not "dual"
CHOSEN = {
    "EmbeddingBag, maximum": "finite-difference",
    "spectral norm": "double-backward",
    "custom Function without jvp": "double-backward",
    "compiled module": "two-pass",
    "compiled part": "two-pass",
    "scripted part": "two-pass",
}
NO_FORMULA = "no forward-mode formula"
NO_SECOND = "its backward has no derivative"
#: what an engine cannot run, and why
CANNOT = {
    ("dual", "EmbeddingBag, maximum"): NO_FORMULA,
    ("dual", "spectral norm"): NO_FORMULA,
    ("dual", "custom Function without jvp"): NO_FORMULA,
    ("two-pass", "EmbeddingBag, maximum"): NO_FORMULA,
    ("two-pass", "spectral norm"): NO_FORMULA,
    ("two-pass", "custom Function without jvp"): NO_FORMULA,
    ("double-backward", "fused attention"): NO_SECOND,
    ("double-backward", "MultiheadAttention"): NO_SECOND,
    ("double-backward", "TransformerEncoderLayer"): NO_SECOND,
    ("double-backward", "EmbeddingBag"): NO_SECOND,
    ("double-backward", "EmbeddingBag, maximum"): NO_SECOND,
    ("finite-difference", "padded embeddings"): "the backward leaves out the padding",
}


def flat(tensors, like):
    pairs = zip(tensors, like, strict=True)
    return flatten([torch.zeros_like(p) if g is None else g for g, p in pairs])


def bracket_of(model, x, y, engine):
    """p.grad of one block, with the velocity that it had."""
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None, engine=engine)
    v, likelihood = set_velocity(optimizer, model), Categorical()
    torch.manual_seed(7)
    with optimizer.tangents(model):
        outputs = model(x)
        carried = torch.autograd.forward_ad.unpack_dual(outputs).tangent is not None
        assert carried or engine in ("auto", "double-backward")  # which looks at the graph later
        loss = likelihood(outputs, y)
    loss.backward()
    parameters = list(model.parameters())
    return flat([p.grad for p in parameters], parameters), v, optimizer


def wanted(model, x, y, v):
    """``g - 0.7 F v`` from the dense Fisher matrix, with the same random numbers."""
    likelihood = Categorical()
    torch.manual_seed(7)
    z, parameters = model(x), list(model.parameters())
    loss = likelihood(z, y)
    g = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return flat(g, parameters) - 0.7 * fisher_matrix(likelihood, z, parameters) @ v


@pytest.mark.filterwarnings("ignore::UserWarning:torch._dynamo", "ignore::DeprecationWarning")
@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("name", MODELS)
def test_the_bracket_is_that_of_the_dense_fisher_matrix(name, engine):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x, y = make(), inputs(), torch.randint(CLASSES, (B,))
    twin = model if "compiled" in name else deepcopy(model)
    if (engine, name) in CANNOT:
        with pytest.raises((CannotRunError, DisagreementError), match=f"{engine}|disagree"):
            bracket_of(model, x, y, engine)
        return
    found, v, optimizer = bracket_of(model, x.clone(), y, engine)
    random_state, buffers = torch.get_rng_state(), deepcopy(list(model.buffers()))
    chosen = optimizer._blocks.engine.chosen(Site(model))
    assert chosen.name == (CHOSEN.get(name, "dual") if engine == "auto" else engine)
    torch.testing.assert_close(
        found, wanted(twin, x, y, v), rtol=0, atol=1e-10 if chosen.exact else 1e-6
    )
    # random numbers were used, and batch statistics updated, as often as in an ordinary pass
    assert torch.get_rng_state().equal(random_state)
    if twin is not model:
        assert all(a.equal(b) for a, b in zip(buffers, twin.buffers(), strict=True))


@pytest.mark.parametrize("where", ["in the block", "around it"])
@pytest.mark.parametrize("engine", NAMES)
def test_cached_parametrizations(engine, where):
    """Each pass has weights of its own, and what was cached before is what is cached after."""
    torch.manual_seed(0)
    make, inputs = MODELS["weight norm"]
    model, x, y = make(), inputs(), torch.randint(CLASSES, (B,))
    twin = deepcopy(model)
    around, inside = (parametrize.cached, nullcontext)
    if where == "in the block":
        around, inside = inside, around
    with around():
        before = model[0].weight  # it has no tangent
        optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None, engine=engine)
        v = set_velocity(optimizer, model)
        with optimizer.tangents(model), inside():
            loss = Categorical()(model(x), y)
        assert (model[0].weight is before) == (where == "around it")
    loss.backward()
    parameters = list(model.parameters())
    found, exact = flat([p.grad for p in parameters], parameters), engine != "finite-difference"
    expected = wanted(twin, x, y, v)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 if exact else 1e-6)


@pytest.mark.parametrize("where", ["in the block", "around it"])
def test_replays_of_cached_parametrizations(where):
    torch.manual_seed(0)
    make, inputs = MODELS["weight norm"]
    model, x, y = make(), inputs(), torch.randint(CLASSES, (B,))
    optimizer = TANGO(model.parameters())  # γ "auto" would warn that it cannot run again
    for _ in range(4):
        optimizer.zero_grad()
        around, inside = parametrize.cached(), nullcontext()
        if where == "in the block":
            around, inside = inside, around
        with around:
            with optimizer.tangents(model), inside:
                loss = Categorical()(model(x), y)
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("engine", ["auto", "dual", "two-pass"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "MultiheadAttention", "TransformerEncoderLayer"])
def test_single_precision_by_default(name, engine):
    """oneDNN's LSTM and the fused attention have no forward formula: nothing need be switched."""
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x, y = make(), inputs(), torch.randint(CLASSES, (B,))
    twin = deepcopy(model)
    torch.manual_seed(1)
    found, v, _ = bracket_of(model.float(), x.float(), y, engine)
    torch.testing.assert_close(found.double(), wanted(twin, x, y, v.double()), rtol=0, atol=2e-6)


@pytest.mark.parametrize("engine", ["dual", "double-backward"])
def test_raw_parameters(engine):
    theta = torch.randn(3, 2, requires_grad=True)
    optimizer = TANGO([theta], gamma=0.1, preconditioner=None, engine=engine)
    v = optimizer.state[theta]["velocity"] = torch.randn(3, 2)
    x, y = torch.randn(5, 3), torch.randint(2, (5,))
    with optimizer.tangents():
        loss = Categorical()(torch.tanh(x @ theta), y)
    loss.backward()
    z = torch.tanh(x @ theta)
    g = torch.autograd.grad(Categorical()(z, y), theta, retain_graph=True)[0].flatten()
    F = fisher_matrix(Categorical(), z, [theta])
    kept = 1 - optimizer.param_groups[0]["previous_lr"]
    torch.testing.assert_close(theta.grad.flatten(), g - kept * F @ v.flatten())


@pytest.mark.parametrize("engine", ["two-pass", "finite-difference"])
def test_raw_parameters_cannot_be_run_again(engine):
    theta = torch.zeros(2, requires_grad=True)
    optimizer = TANGO([theta], gamma=0.1, preconditioner=None, engine=engine)
    with pytest.raises(ValueError, match=rf"engine='{engine}'.*evaluate"), optimizer.tangents():
        pass


def test_complex_parameters_are_refused():
    theta = torch.zeros(2, dtype=torch.complex128, requires_grad=True)
    with pytest.raises(TypeError, match="real"):
        TANGO([theta], gamma=0.1)


def test_an_unknown_engine():
    with pytest.raises(ValueError, match="engine must be one of auto, dual, two-pass"):
        TANGO(nn.Linear(2, 2).parameters(), engine="jvp")


def table():
    """The matrix, for the docs."""
    engines = [name for name in NAMES if name != "auto"]
    rows = ["| | " + " | ".join((*engines, "auto")) + " |", "| --- " * (len(engines) + 2) + "|"]
    for name in MODELS:
        cells = [
            CANNOT.get((engine, name), "10⁻⁶" if engine == "finite-difference" else "10⁻¹⁰")
            for engine in engines
        ]
        rows.append("| " + " | ".join((name, *cells, CHOSEN.get(name, "dual"))) + " |")
    return "\n".join(rows)


def test_the_docs_have_the_matrix():
    docs = Path(__file__).parents[2] / "docs" / "engines.md"
    assert table() in docs.read_text(), table()
