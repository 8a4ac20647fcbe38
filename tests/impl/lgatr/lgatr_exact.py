"""The network L-GATr forward in NumPy's long double, straight from its definition: an independent reference.

No code of `impl.lgatr` is used but the signed product table of the algebra. Connected group, scalars in every layer,
two-layer MLP with gelu, plain multi-head attention.
"""

import math

import numpy as np
import pytest

from impl.lgatr import algebra

LONG = np.longdouble
needed = pytest.mark.skipif(np.finfo(LONG).eps > 1e-18, reason="long double is no longer than double here")
GRADES = np.array(algebra.GRADES)
INNER = np.array(algebra.inner_signs(), dtype=LONG)


def _table(terms, *sizes):
    out = np.zeros(sizes, dtype=LONG)
    for *at, sign in terms:
        out[tuple(at)] = sign
    return out


PRODUCT = _table(algebra.product_terms(), 16, 16, 16)
BASIS = _table(algebra.linear_terms(True), 10, 16, 16)


def linear(w, name, mv, s):
    """(N, C, 16), (N, S) -> the same with the layer's channels, by the parameters whose names begin with `name`."""
    matrix = np.einsum("yxa,aij->yixj", w[name + "weight"], BASIS)
    out = np.einsum("yixj,nxj->nyi", matrix, mv)
    lifted = s @ w[name + "s2mvs.weight"].T + w.get(name + "s2mvs.bias", LONG(0))
    out[..., 0] += lifted[:, 0::2]
    out[..., 15] += lifted[:, 1::2]
    if name + "mvs2s.weight" not in w:
        return out, None
    invariant = mv[..., [0, 15]].reshape(len(mv), -1)
    out_s = invariant @ w[name + "mvs2s.weight"].T + w.get(name + "mvs2s.bias", LONG(0)) + s @ w[name + "s2s.weight"].T
    return out, out_s


def norm(mv, s, w=None, name=""):
    squares = mv * mv * INNER
    size = sum(np.abs(squares[..., g == GRADES].sum(-1)) for g in range(5)).mean(-1)
    mv = mv / np.sqrt(np.maximum(size, LONG("0.01")))[..., None, None]
    centred = s - s.mean(-1, keepdims=True)
    s = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + LONG("1e-5"))
    if w is not None:
        mv, s = mv * w[name + "weight_mv"][:, GRADES], s * w[name + "weight_s"]
    return mv, s


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / LONG(math.pi)) * (x + LONG("0.044715") * x**3)))


def attention(w, name, mv, s, heads):
    mv, s = linear(w, name + "qkv_module.in_linear.", mv, s)
    n = len(mv)
    mv, s = mv.reshape(n, 3, -1, heads, 16), s.reshape(n, 3, -1, heads)
    outs = []
    for head in range(heads):
        (q, k, v) = (norm(mv[:, part, :, head], s[:, part, :, head]) for part in range(3))
        flat = [np.concatenate([a.reshape(n, -1), b], -1) for a, b in ((q[0] * INNER, q[1]), k, v)]
        logits = flat[0] @ flat[1].T / np.sqrt(LONG(flat[0].shape[-1]))
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ flat[2]
        cut = v[0].shape[1] * 16
        outs.append((out[:, :cut].reshape(n, -1, 16), out[:, cut:]))
    merged = (np.concatenate([out[i] for out in outs], 1) for i in range(2))
    return linear(w, name + "out_linear.", *merged)


def mlp(w, name, mv, s):
    left, _ = linear(w, name + "layers.0.linear_left.", mv, s)
    right, _ = linear(w, name + "layers.0.linear_right.", mv, s)
    product = np.einsum("ijk,ncj,nck->nci", PRODUCT, left, right, optimize=True)
    mv, s = norm(*linear(w, name + "layers.0.linear_out.", product, s))
    return linear(w, name + "layers.2.", mv * gelu(mv[..., :1]), gelu(s))


def network(parameters, mv, s, heads):
    """LGATr.forward of one set: (N, in_mv, 16), (N, in_s) -> (N, out_mv, 16), (N, out_s), all long double.

    parameters : dict    names and arrays of the network's state
    """
    w = {name: np.asarray(value, dtype=LONG) for name, value in parameters.items()}
    blocks = 1 + max((int(name.split(".")[1]) for name in w if name.startswith("blocks.")), default=-1)
    mv, s = linear(w, "linear_in.", np.asarray(mv, dtype=LONG), np.asarray(s, dtype=LONG))
    for i in range(blocks):
        name = f"blocks.{i}."
        more, more_s = attention(w, name + "attention.", *norm(mv, s, w, name + "norm1."), heads)
        mv, s = mv + more, s + more_s
        more, more_s = mlp(w, name + "mlp.", *norm(mv, s, w, name + "norm2."))
        mv, s = mv + more, s + more_s
    return linear(w, "linear_out.", mv, s)


def on_multivectors(transformation):
    """(4, 4) on vectors -> (16, 16) on multivectors, long double, by multiplying the images of the generators."""
    image = [np.zeros(16, dtype=LONG) for _ in range(4)]
    for column in range(4):
        image[column][1:5] = transformation[:, column]
    out = np.zeros((16, 16), dtype=LONG)
    for component, mask in enumerate(algebra.BLADES):
        blade = np.zeros(16, dtype=LONG)
        blade[0] = 1
        for g in range(4):
            if mask >> g & 1:
                blade = np.einsum("ijk,j,k->i", PRODUCT, blade, image[g])
        out[:, component] = blade
    return out
