"""skorch: scikit-learn's interface around TANGO."""

from copy import deepcopy

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier

from tangograd import TANGO, Categorical
from tangograd.integrations.skorch import WithTangents

from ..cases import mlp
from ..test_optimizer import batches, train


class Classifier(WithTangents, NeuralNetClassifier):
    pass


def test_the_steps_are_those_of_a_plain_loop():
    data = batches(6, rows=8)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    model = mlp()
    twin = deepcopy(model)
    net = Classifier(
        model,
        criterion=Categorical,
        optimizer=TANGO,
        optimizer__gamma=0.1,
        optimizer__preconditioner=None,
        lr=0.2,
        max_epochs=3,
        batch_size=8,
        train_split=None,
        iterator_train__shuffle=False,
        verbose=0,
    )
    net = clone(net).fit(x.numpy(), y.numpy())
    train(
        twin,
        TANGO(twin.parameters(), lr=0.2, gamma=0.1, preconditioner=None),
        Categorical(),
        3 * data,
    )
    for p, q in zip(net.module_.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)
    assert np.array_equal(net.predict(x.numpy()), twin(x).argmax(1).numpy())
