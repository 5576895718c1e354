"""Lightning with manual optimization: a step of TANGO, written out.

What `self.optimizers()` returns is Lightning's wrapper; it has all of TANGO's methods.

python examples/lightning_manual.py
"""

import lightning
import torch
from torch import Tensor, nn

from tangograd import TANGO, Categorical


class Classifier(lightning.LightningModule):
    """A small network, and TANGO."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
        self.likelihood = Categorical()
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        with optimizer.tangents(self.network):
            loss = self.likelihood(self.network(x), y)
        self.manual_backward(loss)
        optimizer.step()
        self.losses.append(loss.item())

    def configure_optimizers(self) -> TANGO:
        return TANGO(self.parameters())


def data() -> torch.utils.data.DataLoader:
    x = torch.randn(512, 8)
    y = (x @ torch.randn(8, 3) + torch.randn(512, 3)).argmax(1)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True
    )


def main() -> list[float]:
    torch.manual_seed(0)
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=10,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data())
    print(f"loss {model.losses[0]:.3f} -> {model.losses[-1]:.3f}")
    return model.losses


if __name__ == "__main__":
    main()
