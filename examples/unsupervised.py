"""An unsupervised model (x = ∅): fit N(μ, σ²) to data, with bare parameters.

This is the model of the paper's Figure 1: from N(0, 1) to data drawn from N(10, 1). The natural
gradient first widens the distribution, because a wide one can move its mean faster, and narrows it
again near the data.

    python examples/unsupervised.py
"""

import torch

from tangograd import TANGO, MeanScaleGaussian


def main(steps: int = 3000, report: int = 300) -> torch.Tensor:
    torch.manual_seed(0)
    data = 10 + torch.randn(10_000, 1)
    theta = torch.zeros(2, requires_grad=True)  # (μ, ln σ)
    likelihood = MeanScaleGaussian()
    optimizer = TANGO([theta], lr=2e-3, gamma=0.1, preconditioner=None)
    for step in range(1, steps + 1):
        y = data[torch.randint(len(data), (10,))]
        optimizer.zero_grad()
        with optimizer.tangents():
            loss = likelihood(theta.expand(len(y), 2), y)
        loss.backward()
        optimizer.step()
        if step % report == 0:
            mu, log_sigma = theta.tolist()
            print(f"step {step:5}  mean {mu:6.2f}  sd {torch.tensor(log_sigma).exp():5.2f}")
    return theta.detach()


if __name__ == "__main__":
    main()
