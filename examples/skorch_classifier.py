"""skorch: a scikit-learn classifier that TANGO trains.

It learns to read handwritten digits, which come with scikit-learn.

python examples/skorch_classifier.py
"""

from functools import partial

import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

from tangograd import TANGO, Categorical
from tangograd.integrations.skorch import WithTangents


class Classifier(WithTangents, NeuralNetClassifier):
    """The mixin opens `tangents` in each training step."""


def main() -> list[float]:
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    net = Classifier(
        nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)),
        criterion=Categorical,
        optimizer=TANGO,
        lr=0.1,
        max_epochs=5,
        predict_nonlinearity=partial(torch.softmax, dim=-1),
        verbose=0,
    )
    net.fit(x.astype("float32") / 16, y)
    losses = [float(loss) for loss in net.history[:, "train_loss"]]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
