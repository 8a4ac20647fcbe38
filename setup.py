from setuptools import setup

setup(cffi_modules=[f"csrc/build.py:{name}" for name in ("events", "gnn", "lgatr", "mapping")])
