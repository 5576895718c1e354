"""The number of times that a step reads from the device, on which a GPU would be waited for."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tangograd import TANGO, Categorical
from tangograd.curvature import refresh

from ..cases import Attention, mlp


class Reads(TorchDispatchMode):
    """Counts reads of single numbers, and conversions of tensors to lists."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.count = 0
        to_list = torch.Tensor.tolist

        def counted(tensor):
            self.count += 1
            with torch._C._DisableTorchDispatch():
                return to_list(tensor)

        monkeypatch.setattr(torch.Tensor, "tolist", counted)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("gamma", [0.1, "auto"])
@pytest.mark.parametrize("preconditioner", ["auto", "diagonal", None])
@pytest.mark.parametrize("kind", ["mlp", "attention"])
def test_an_ordinary_step_reads_once_and_a_refresh_at_most_five_times(
    kind, preconditioner, gamma, monkeypatch
):
    model = mlp() if kind == "mlp" else Attention()
    x = torch.randn(8, 3) if kind == "mlp" else torch.randn(8, 4, 4)
    y = (torch.arange(8) if kind == "mlp" else torch.arange(32).reshape(8, 4)) % 2
    optimizer, likelihood = (
        TANGO(model.parameters(), gamma=gamma, preconditioner=preconditioner),
        Categorical(),
    )
    ordinary, refreshing = set(), set()
    for step in range(70):
        Cs = [optimizer.param_groups[0]["preconditioner"]]
        due = refresh.is_due(step, [optimizer.param_groups[0]["gamma"]], Cs)
        optimizer.zero_grad()
        with Reads(monkeypatch) as reads:
            with optimizer.tangents(model):
                loss = likelihood(model(x), y)
            loss.backward()
            optimizer.step()
        checked = step < 16 or step % 100 == 0  # the adjoint test reads two numbers
        if step > 16 and not checked:
            (refreshing if due else ordinary).add(reads.count)
    assert ordinary == {1}
    assert max(refreshing, default=0) <= 5
