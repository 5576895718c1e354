"""skorch's networks with TANGO."""

from __future__ import annotations

from typing import Any

from skorch.dataset import unpack_data


class WithTangents:
    """A mixin for skorch's networks: training steps run under `tangents`.

    Use a likelihood for the criterion::

        class Net(WithTangents, NeuralNetClassifier): ...

        net = Net(module, criterion=Categorical, optimizer=TANGO, lr=0.1)

    A classifier's ``predict_nonlinearity`` makes probabilities of logits for ``predict_proba``.
    """

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Take a step as skorch does, with the forward pass and the loss in a `tangents` block."""
        net: Any = self
        net._set_training(True)
        inputs, targets = unpack_data(batch)
        with net.optimizer_.tangents(net.module_):
            outputs = net.infer(inputs, **fit_params)
            loss = net.get_loss(outputs, targets, X=inputs, training=True)
        loss.backward()
        return {"loss": loss, "y_pred": outputs}
