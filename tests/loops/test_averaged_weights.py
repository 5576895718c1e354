"""Averages of the weights (EMA, SWA) beside training."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from tangograd import TANGO, Categorical

from ..test_optimizer import batches


def network():
    return nn.Sequential(nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


def test_the_average_is_that_of_the_path_and_training_does_not_notice():
    data, model = batches(15), network()
    twin = deepcopy(model)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    likelihood = Categorical()
    expected = None
    for averaging, net in ((True, model), (False, twin)):
        torch.manual_seed(5)  # "auto" draws
        likelihood.generator.manual_seed(5)
        optimizer = TANGO(net.parameters())
        for x, y in data:
            optimizer.zero_grad()
            with optimizer.tangents(net):
                z = net(x)
                if averaging:  # a look at the average in the block meets no tangents
                    before = [p.detach().clone() for p in ema.parameters()]
                    assert forward_ad.unpack_dual(ema.eval()(x)).tangent is None
                    assert all(p.equal(q) for p, q in zip(ema.parameters(), before, strict=True))
                loss = likelihood(z, y)
            loss.backward()
            optimizer.step()
            if averaging:
                ema.update_parameters(net)
                weight = net[0].weight.detach().clone()
                expected = weight if expected is None else 0.8 * expected + 0.2 * weight
    torch.testing.assert_close(ema.module[0].weight.detach(), expected)
    assert all(p.equal(q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert all(p.grad is None for p in ema.parameters())

    update_bn([x for x, _ in data], ema)
    all_data = torch.cat([x for x, _ in data])
    torch.testing.assert_close(
        ema.module[1].running_mean, ema.module[0](all_data).detach().mean(0), rtol=1e-10, atol=1e-12
    )


def test_training_the_average_by_mistake():
    model = network()
    optimizer, ema = TANGO(model.parameters()), AveragedModel(model)
    with (
        pytest.raises(ValueError, match=r"'module\.0\.weight' is trainable but not in the optim"),
        optimizer.tangents(ema),
    ):
        pass
