"""ROOT files to graph caches: nodes, edges, globals, labels and weights of collision events, ready for training.

`python -m impl.events prepare FILE… --schema NAME --output DIR` makes a cache; impl.events.cache reads it. Needs uproot
and awkward; torch and dgl only for `export`, `import` and the DGL arms of the benchmarks.
"""
