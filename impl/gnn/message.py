"""The message rounds three ways: DGL (the reference), plain torch with split weights, and the fused step in C.

All three compute, K times, with sums over sources i and means that are 0 over nothing:

    e_ij <- MLP([e_ij, h_i, h_j, g]);  h_j <- MLP([h_j, sum_i e_ij, g]);  g <- MLP([g, mean h_j, mean e_ij])

Splitting the first layer's columns, W [e, h_i, h_j, g] = W_e e + (W_s h_i + W_g g + b) + W_d h_j, moves all but W_e e
from E products to N; and sum_ij e_ij = sum_j (sum_i e_ij), so the edge mean needs no pass over edges.
"""

import os
import sys

import torch
from torch.nn.functional import linear

from impl.gnn import kernel
from impl.gnn.errors import InputError, PackageError

BACKENDS = ("dgl", "dense", "fused")


def backend(name: str, config, **options):
    """The backend of that name; options that are False or None are not given.

    Raises
    ------
    InputError          no such backend, an option that it does not have, or a width that it cannot take
    PackageError        'dgl' without dgl
    """
    kinds = {"dgl": (Dgl, ()), "dense": (Dense, ("compiled",)), "fused": (Fused, ("recompute", "isa"))}
    if name not in kinds:
        raise InputError("backend", "one of " + ", ".join(BACKENDS), repr(name))
    kind, known = kinds[name]
    given = {key: value for key, value in options.items() if value}
    for key in given:
        if key not in known:
            raise InputError(f"backend '{name}'", "the options " + ", ".join(known) if known else "no options", key)
    if name == "fused":
        if config.hidden % 16 or config.hidden > 512 or config.edge > 16:
            raise InputError("backend 'fused'", "a hidden width that is a multiple of 16 up to 512 and up to 16 edge "
                             "features", f"{config.hidden} and {config.edge}", "use the backend 'dense'")  # fmt: skip
        if given.get("isa", "plain") not in kernel.ISAS:
            raise InputError("backend 'fused': isa", "one of " + ", ".join(kernel.ISAS), repr(given["isa"]))
    return kind(**given)


def import_dgl():
    """The dgl module, told to use torch. Raises PackageError where it is missing or does not load."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except (ImportError, OSError) as error:  # OSError: its libraries do not fit this torch
        raise PackageError("backend 'dgl'", "dgl 1.1.0 (Linux, Python 3.11)", str(error),
                           "pip install 'harness-ab[gnn]', or use 'dense' or 'fused'") from None  # fmt: skip
    return dgl


class Dgl:
    """Message functions on concatenated features, as a DGL user writes them; float32 eager."""

    name = "dgl"

    def __init__(self):
        self.dgl = import_dgl()

    def graph(self, batch):
        """The batch as one DGL graph with its events' boundaries."""
        source, target = batch.edge_index()
        graph = self.dgl.graph((source, target), num_nodes=batch.layout.nodes, device=source.device)
        graph.set_batch_num_nodes(batch.objects)
        graph.set_batch_num_edges(batch.pairs)
        return graph

    def __call__(self, net, batch):
        graph = batch.derived("dgl", self.graph)
        with graph.local_scope():
            return self._rounds(net, graph, batch)

    def _rounds(self, net, graph, batch):
        dgl, fn = self.dgl, self.dgl.function
        graph.ndata["h"], g = net.encode(batch)
        graph.edata["e"] = net.encode_edge(batch.edge_x)
        for update in net.rounds():
            graph.edata["g"] = dgl.broadcast_edges(graph, g)

            def message(edges, update=update):
                columns = [edges.data["e"], edges.src["h"], edges.dst["h"], edges.data["g"]]
                return {"e": update.edge(torch.cat(columns, 1))}

            graph.apply_edges(message)
            graph.update_all(fn.copy_e("e", "m"), fn.sum("m", "a"))
            columns = [graph.ndata["h"], graph.ndata["a"], dgl.broadcast_nodes(graph, g)]
            graph.ndata["h"] = update.node(torch.cat(columns, 1))
            g = update.glob(torch.cat([g, dgl.mean_nodes(graph, "h"), dgl.mean_edges(graph, "e")], 1))
        return g


def _columns(layer, parts: int):
    """A first layer's weight cut into equal blocks of columns."""
    return [block.contiguous() for block in layer.weight.chunk(parts, dim=1)]


class _Split:
    """Node and global updates with split weights; subclasses say how edges are encoded and updated."""

    def __call__(self, net, batch):
        event, per_node, per_edge = batch.event_of_node(), *batch.inverse_counts()
        h, g = net.encode(batch)
        edges = self.encode(net, batch)
        rounds = net.rounds()
        # Shared weights are cut once a step, not once a round: every cut costs a copy here and one in backward.
        cut = {update: (_columns(update.edge.first, 4), _columns(update.node.first, 3), _columns(update.glob.first, 3))
               for update in rounds}  # fmt: skip
        for number, update in enumerate(rounds):
            (w_edge, w_source, w_target, w_glob), *later = cut[update]
            ps = torch.addmm(linear(g, w_glob, update.edge.first.bias).index_select(0, event), h, w_source.t())
            pd = linear(h, w_target)
            edges, a = self.step(batch, edges, w_edge, ps, pd, update.edge, number == len(rounds) - 1)
            (w_node, w_sum, w_glob), (w_own, w_nodes, w_edges) = later
            z = torch.addmm(linear(g, w_glob, update.node.first.bias).index_select(0, event), h, w_node.t())
            h = update.node.finish(torch.addmm(z, a, w_sum.t()))
            z = torch.addmm(linear(g, w_own, update.glob.first.bias), batch.sum_nodes(h) * per_node, w_nodes.t())
            g = update.glob.finish(torch.addmm(z, batch.sum_nodes(a) * per_edge, w_edges.t()))
        return g


def bucket(edges: int) -> int:
    """The next of 4, 5, 6, 7 times a power of two: at most a quarter more, on average a ninth."""
    if edges <= 4:
        return 4
    unit = 1 << max((edges - 1).bit_length() - 3, 0)
    return -(-edges // unit) * unit


def _edge_step(edges, w_edge, ps, pd, source, target, w2, b2, gamma, beta, epsilon):
    """One edge update and its sum over sources, as one function for torch.compile."""
    z = linear(edges, w_edge) + ps.index_select(0, source) + pd.index_select(0, target)
    out = torch.relu(linear(torch.relu(z), w2, b2))
    out = out.float() if out.dtype == torch.bfloat16 else out
    out = torch.nn.functional.layer_norm(out, gamma.shape, gamma, beta, epsilon)
    return out, out.new_zeros(ps.shape).index_add(0, target, out)


class Dense(_Split):
    """Plain torch: split weights; a source's row is broadcast over its edges where all events have one size.

    Parameters
    ----------
    compiled : bool     the edge update by torch.compile: edges are padded to buckets, so that few shapes are compiled,
                        with a node of their own behind the batch's; falls back to plain torch when compiling fails
    """

    name = "dense"

    def __init__(self, compiled: bool = False):
        self.compiled = None
        if compiled:
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
            self.compiled = torch.compile(_edge_step, dynamic=False)

    @staticmethod
    def compilations() -> int:
        """Graphs compiled in this process so far."""
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def encode(self, net, batch):
        if self.compiled is None:
            return net.encode_edge(batch.edge_x)
        return net.encode_edge(batch.derived("padded_x", _padded_features))

    def step(self, batch, edges, w_edge, ps, pd, mlp, last):
        if self.compiled is not None:
            return self._compiled_step(batch, edges, w_edge, ps, pd, mlp)
        source, target = batch.edge_index()
        z = linear(edges, w_edge)
        objects = batch.layout.objects
        degree = int(objects[0]) - (not batch.layout.self_loops) if len(objects) else 0
        if degree > 0 and (objects == objects[0]).all():
            z = (z.view(len(ps), degree, -1) + ps.unsqueeze(1)).view(z.shape)
        else:
            z = z + ps.index_select(0, source)
        edges = mlp.finish(z + pd.index_select(0, target))
        return edges, edges.new_zeros(ps.shape).index_add(0, target, edges)

    def _compiled_step(self, batch, edges, w_edge, ps, pd, mlp):
        source, target = batch.derived("padded_index", _padded_index)
        ps, pd = (torch.nn.functional.pad(rows, (0, 0, 0, 1)) for rows in (ps, pd))
        for rows in (ps, pd):
            torch._dynamo.maybe_mark_dynamic(rows, 0)
        arguments = (edges, w_edge, ps, pd, source, target, mlp.second.weight, mlp.second.bias, mlp.norm.weight,
                     mlp.norm.bias, mlp.norm.eps)  # fmt: skip
        try:
            edges, a = self.compiled(*arguments)
        except torch._dynamo.exc.TorchDynamoException as error:
            first = str(error).splitlines()[0]
            print(f"torch.compile failed ({first}); going on without it", file=sys.stderr)
            self.compiled = _edge_step
            edges, a = _edge_step(*arguments)
        return edges, a[:-1]


def _padded_features(batch):
    return torch.nn.functional.pad(batch.edge_x, (0, 0, 0, bucket(batch.layout.edges) - batch.layout.edges))


def _padded_index(batch):
    room = bucket(batch.layout.edges) - batch.layout.edges
    return tuple(torch.nn.functional.pad(rows, (0, room), value=batch.layout.nodes) for rows in batch.edge_index())


class Fused(_Split):
    """The step in C (csrc/gnn.h): gather, both layers, norm and sum over tiles of edges, forward and backward.

    Parameters
    ----------
    recompute : bool        compute first activations again in backward: half the memory an edge and round
    isa : str or None       one of kernel.ISAS; None is the machine's best
    """

    name = "fused"

    def __init__(self, recompute: bool = False, isa: str | None = None):
        self.recompute, self.isa = recompute, isa

    def encode(self, net, batch):
        mlp = net.encode_edge
        state, _ = kernel.step(batch.layout, batch.edge_x, mlp.first.weight, mlp.first.bias, None, mlp.second.weight,
                               mlp.second.bias, mlp.norm, with_sum=False, isa=self.isa)  # fmt: skip
        return state, mlp.norm

    def step(self, batch, edges, w_edge, ps, pd, mlp, last):
        state, in_norm = edges
        state, a = kernel.step(batch.layout, state, w_edge, None, (ps, pd), mlp.second.weight, mlp.second.bias,
                               mlp.norm, in_norm, recompute=self.recompute, last=last, isa=self.isa)  # fmt: skip
        return (state, mlp.norm), a
