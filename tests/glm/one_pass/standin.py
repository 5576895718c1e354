"""NumPy families, until the package's own have this interface."""

import numpy as np


class _Scalar:
    outputs, canonical, estimates_dispersion, link = 1, True, False, "log"

    def evaluate(self, eta, y):
        loss, s, f, h = self.parts(eta[:, 0], y)
        return loss, s[:, None], f[:, None, None], h[:, None, None]

    def expansion_point(self, eta, y):
        return self.bounded(eta[:, 0], y)[:, None]

    def null_predictor(self, y, w):
        return np.array([self.linear_predictor(np.average(y, weights=w))])

    def linear_predictor(self, mu):
        return np.log(np.maximum(mu, 1e-6))

    def saturated_loss(self, y):
        return np.zeros_like(y)

    log_normalizer = saturated_loss


class Gaussian(_Scalar):
    link, estimates_dispersion = "identity", True

    def parts(self, eta, y):
        r = eta - y
        return r * r / 2, r, np.ones_like(r), np.ones_like(r)

    def bounded(self, eta, y):
        return eta

    def linear_predictor(self, mu):
        return np.asarray(mu, float)


class Logit(_Scalar):
    link = "logit"

    def parts(self, eta, y):
        q = np.exp(-np.abs(eta))
        f = q / (1 + q) ** 2
        s = (1 - y) / (1 + np.exp(np.clip(-eta, -700, 700))) - y / (1 + np.exp(np.clip(eta, -700, 700)))
        return np.logaddexp(0, eta) - y * eta, s, f, f

    def bounded(self, eta, y):
        return np.where(y > 0.5, np.maximum(eta, -8), np.minimum(eta, 8))

    def linear_predictor(self, mu):
        mu = np.clip(mu, 1e-6, 1 - 1e-6)
        return np.log(mu / (1 - mu))


class Poisson(_Scalar):
    def parts(self, eta, y):
        mu = np.exp(np.minimum(eta, 300))
        return mu - y * eta, mu - y, mu, mu

    def bounded(self, eta, y):
        return np.minimum(eta, np.log(np.maximum(y, 0.5)) + 5)


class Gamma(_Scalar):
    canonical, estimates_dispersion = False, True

    def parts(self, eta, y):
        r = y * np.exp(np.minimum(-eta, 300))
        return eta + r, 1 - r, np.ones_like(eta), r

    def bounded(self, eta, y):
        return np.maximum(eta, np.log(y) - 5)


class Multinomial(_Scalar):
    link = "logit"

    def __init__(self, outputs):
        self.outputs = outputs

    def evaluate(self, eta, y):
        full = np.c_[np.zeros(len(y)), eta]
        top = full.max(axis=1, keepdims=True)
        P = np.exp(full - top)
        total = P.sum(axis=1, keepdims=True)
        P = P / total
        code = y.astype(int)
        loss = (top + np.log(total))[:, 0] - full[np.arange(len(y)), code]
        s = P.copy()
        s[np.arange(len(y)), code] -= 1
        s, P = s[:, 1:], P[:, 1:]
        f = -P[:, :, None] * P[:, None, :]
        i = np.arange(self.outputs)
        f[:, i, i] += P
        return loss, s, f, f

    def expansion_point(self, eta, y):
        return eta

    def null_predictor(self, y, w):
        counts = np.maximum(np.bincount(y.astype(int), w, self.outputs + 1), 0.5)
        return np.log(counts[1:] / counts[0])
