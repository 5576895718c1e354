"""Hugging Face Accelerate: prepare the optimizer as ever, and open `tangents` on TANGO itself.

Two micro-batches make a step here; Accelerate divides their losses by two.

python examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn

from tangograd import TANGO, Categorical


def main() -> list[float]:
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    y = (x @ torch.randn(8, 3) + torch.randn(512, 3)).argmax(1)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True
    )
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    likelihood = Categorical()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    tango = TANGO(model.parameters())
    tango.scaler = accelerator.scaler  # None but for mixed_precision="fp16"
    model, optimizer, loader = accelerator.prepare(model, tango, loader)

    losses = []
    for _ in range(10):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                with tango.tangents(model):
                    loss = likelihood(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
