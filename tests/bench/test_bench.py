"""The repository's own benchmarks: mapping kernel, graph cache, message step, parsing of a record.

`harness ab pytest:tests/bench@HEAD~1 pytest:tests/bench` compares them at two revisions; without the harness,
`pytest tests/bench --benchmark-enable` shows their times.
"""

from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "data"


def test_mapping_kernel(benchmark):
    from impl.mapping import sources
    from impl.mapping.kernel import Kernel, Options
    from impl.mapping.pipeline import map_calls, prepare

    options = Options(depth=2)
    scan = sources.synthetic(32, 3)
    calls = [call for tile in scan.tiles for call in prepare(scan, tile, options.depth, "stationary", options)]
    with Kernel(scan.grid, options) as kernel:
        batches = benchmark(lambda: map_calls(kernel, calls)[0])
    given = sum(float(call.intensity.sum()) for call in calls)
    assert sum(float(batch.sum_intensity.sum()) for batch in batches) == pytest.approx(given, rel=1e-9)


def test_cache_batch(benchmark, tmp_path):
    from impl.events import cache, sample

    counts, objects, scalars = sample.columns(500)
    names = ("pt", "eta", "phi", "mass")
    arrays = {
        "node_x": np.stack([objects[f"Object_{name}"] for name in names], axis=1),
        "node_off": np.concatenate([[0], np.cumsum(counts)]),
        "glob": np.stack([scalars["MET_pt"], scalars["MET_phi"]], axis=1),
        "label": scalars["label"],
        "weight": scalars["weight"],
    }
    made = cache.write(tmp_path / "cache", arrays, node_features=names, globals=("MET_pt", "MET_phi"))
    index = np.random.default_rng(1).permutation(len(made))[:64]
    batch = benchmark(made.batch, index)
    assert batch.node_x.tobytes() == b"".join(
        arrays["node_x"][arrays["node_off"][i] : arrays["node_off"][i + 1]].tobytes() for i in index
    )


@pytest.mark.extras
def test_message_step(benchmark):
    torch = pytest.importorskip("torch")
    from impl.gnn import kernel

    torch.set_num_threads(1)
    torch.manual_seed(1)
    hidden = 64
    layout = kernel.Layout.of(np.full(32, 16))
    x, w1 = torch.randn(layout.edges, 3), torch.randn(hidden, 3)
    projections = torch.randn(layout.nodes, hidden), torch.randn(layout.nodes, hidden)
    w2, b2, norm = torch.randn(hidden, hidden) / 8, torch.randn(hidden), torch.nn.LayerNorm(hidden)

    def step():
        with torch.no_grad():
            return kernel.step(layout, x, w1, None, projections, w2, b2, norm, last=True)[1]

    total = benchmark(step)
    assert total.shape == (layout.nodes, hidden)
    # every edge's row has mean 0 after its norm, so every sum of rows has
    assert total.mean(dim=1).abs().max() < 1e-4


def test_record_parsing(benchmark):
    from harness import analysis, records

    entries = benchmark(records.read, DATA / "records" / "improvement.jsonl")
    assert analysis.summarise(entries)["verdict"]["word"] == "improvement"
