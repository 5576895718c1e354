"""Lightning: its loop takes the steps of a plain one, and its checkpoints resume bit for bit."""

from copy import deepcopy

import lightning
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader

from tangograd import TANGO, Categorical

from ..cases import mlp
from ..test_optimizer import batches
from ..test_optimizer import train as plain_loop
from ..test_session import same
from .warned import lightnings_own

pytestmark = lightnings_own


class Module(lightning.LightningModule):
    def __init__(self, *, manual=False, **options):
        super().__init__()
        torch.manual_seed(7)
        self.automatic_optimization = not manual
        self.network, self.likelihood = mlp(), Categorical(fisher="sampled")
        self.options = options

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch):
        optimizer = self.optimizers()
        if not self.automatic_optimization:
            optimizer.zero_grad()
        with optimizer.tangents(self):
            loss = self.likelihood(self(batch[0]), batch[1])
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        optimizer.step()
        return None

    def configure_optimizers(self):
        optimizer = TANGO(self.parameters(), **self.options)
        optimizer.scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return optimizer


def fit(module, data, tmp_path, *, epochs=1, checkpoint=None, **options):
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, DataLoader(data, batch_size=None), ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("gamma", ["auto", "max"])
def test_the_steps_are_those_of_a_plain_loop(gamma, manual, tmp_path):
    data, module = batches(12), Module(manual=manual, gamma=gamma)
    model, likelihood = deepcopy(module.network), deepcopy(module.likelihood)
    optimizer = TANGO(model.parameters(), gamma=gamma)
    plain_loop(model, optimizer, likelihood, data)
    trainer = fit(module, data, tmp_path)
    for p, q in zip(module.network.parameters(), model.parameters(), strict=True):
        assert p.equal(q)
    assert same(trainer.optimizers[0].state_dict(), optimizer.state_dict())


def test_accumulation(tmp_path):
    """Lightning divides the loss by the number of batches."""
    data, options = batches(12), {"gamma": 0.1, "preconditioner": None}
    module = Module(**options)
    module.likelihood = Categorical()
    model = deepcopy(module.network)
    whole = [
        tuple(torch.cat(parts) for parts in zip(*data[i : i + 3], strict=True))
        for i in range(0, len(data), 3)
    ]
    plain_loop(model, TANGO(model.parameters(), **options), Categorical(), whole)
    fit(module, data, tmp_path, accumulate_grad_batches=3)
    for p, q in zip(module.network.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"gamma": "max", "preconditioner": "kronecker"}])
def test_resuming_from_a_checkpoint(options, tmp_path):
    data, file = batches(8), tmp_path / "run.ckpt"
    whole, first, second = (Module(**options) for _ in range(3))
    uninterrupted = fit(whole, data, tmp_path, epochs=4)
    fit(first, data, tmp_path, epochs=2).save_checkpoint(file)
    resumed = fit(second, data, tmp_path, epochs=4, checkpoint=file)
    for p, q in zip(whole.parameters(), second.parameters(), strict=True):
        assert p.equal(q)
    assert same(uninterrupted.optimizers[0].state_dict(), resumed.optimizers[0].state_dict())


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision(precision, tmp_path):
    x, y = batches(1, rows=16)[0]
    module = Module().float()
    before = module.likelihood(module(x.float()), y).item()
    plugin = MixedPrecision(precision, "cpu")
    trainer = fit(module, [(x.float(), y)] * 30, tmp_path, plugins=[plugin])
    assert module.likelihood(module(x.float()), y).item() < 0.7 * before
    assert (trainer.optimizers[0].scaler is not None) == (precision == "16-mixed")
    assert trainer.optimizers[0].param_groups[0]["steps"] == 30
