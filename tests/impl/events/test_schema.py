"""Schemas and options: faults name the key, what was found and the nearest spelling."""

import copy
import tomllib

import pytest

from impl.events import config, schema
from impl.events.errors import ConfigurationError

MINIMAL = tomllib.loads("""
[schema]
name = "mine"
tree = "Events"
features = ["pt", "eta", "phi", "iso"]
[collections.jet]
pt = "pt"
eta = "eta"
phi = "phi"
mass = 0
iso = "iso"
[globals]
n = { count = ["jet"] }
met = { pt = ["x", "y"] }
""")


def changed(path, value):
    raw = copy.deepcopy(MINIMAL)
    place = raw
    *parents, last = path.split(".")
    for key in parents:
        place = place.setdefault(key, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return raw


def test_every_packaged_schema_is_right():
    assert schema.names() == ["delphes", "hzz", "muons", "nanoaod", "physlite", "pythia", "sample"]
    for name in schema.names():
        assert schema.load(name).name == name


def test_a_minimal_schema_has_defaults():
    made = schema.parse(MINIMAL)
    assert (made.unit, made.label.kind, made.label.value, made.weight.constant) == (1.0, "value", 0, 1.0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colections", {}, "schema.colections: expected one of .*; did you mean 'collections'"),
        ("schema.tree", None, "schema.tree: expected a name, found None"),
        ("schema.energy_unit", "GEV", "expected one of keV, MeV, GeV, TeV, found 'GEV'"),
        ("schema.features", ["pt", "phi"], "expected eta, phi and other names, each once"),
        ("collections.jet.pt", None, "expected the coordinates px py pz energy or .*, found eta phi mass"),
        ("collections.jet.isso", "x", "did you mean 'iso'"),
        ("collections.jet.iso", None, "collections.jet.iso: expected a branch or a constant, found nothing"),
        ("collections.jet.pt", {"branch": "pt", "index": 0}, "no index"),
        ("collections.jet.pt", {"missing": 0}, "expected the key branch"),
        ("collections.jet.pt", {"branch": "pt", "missing": "x"}, "missing: expected a number"),
        ("globals.n", {"count": ["jets"]}, "did you mean 'jet'"),
        ("globals.met", {"pt": ["x"]}, "expected two branches, x and y"),
        ("globals.met", {"pt": ["x", "y"], "phi": ["x", "y"]}, "expected one of pt, phi, count, branch"),
        ("label", {"value": 0, "branch": "x"}, "label: expected one of value, branch, flags, files"),
        ("label", {"value": -1}, "expected a whole number of at least 0"),
        ("label", {"files": ["a"], "classes": ["a", "b"]}, "expected 1 names, one a pattern, found 2"),
        ("scale", {"eta": {"factor": 2}}, "expected a feature other than eta and phi"),
        ("scale", {"pt": {"factor": "x"}}, "factor: expected a number"),
        ("metadata", {"a/b": "x"}, "expected letters, digits and _"),
    ],
)
def test_a_wrong_schema_is_refused_by_a_sentence(path, value, message):
    with pytest.raises(ConfigurationError, match=message):
        schema.parse(changed(path, value))


def test_unknown_schema_names_the_nearest(tmp_path):
    with pytest.raises(ConfigurationError, match="did you mean 'nanoaod'"):
        schema.load("nanoAOD")
    (tmp_path / "x.toml").write_text("[schema\n")
    with pytest.raises(ConfigurationError, match=r"x\.toml: expected a TOML file"):
        schema.load(str(tmp_path / "x.toml"))


def test_the_class_of_a_file_follows_from_its_name():
    pythia = schema.load("pythia")
    assert [pythia.class_of(f"/x/pythia_{name}.root") for name in pythia.label.classes] == [0, 1, 2, 3]
    with pytest.raises(ConfigurationError, match=r"found 0 matches; set the label with label=0"):
        pythia.class_of("signal.root")


def test_settings_override_the_file_and_keywords_override_both(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('schema = "hzz"\noutput = "a"\nnum_workers = 2\nmax_nodes = 5\n')
    options = config.load(str(file), ["num_workers=auto", "label=[0, 1]", "replace_value=1"], output="b")
    assert (options.schema, options.output, options.num_workers) == ("hzz", "b", "auto")
    assert (options.max_nodes, options.label, options.replace_value) == (5, (0, 1), 1.0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("num_worker=2", "did you mean 'num_workers'"),
        ("num_workers=-1", 'expected 0, 1, 2, … or "auto"'),
        ("num_workers=true", "expected 0, 1, 2"),
        ("damaged=skip", "expected one of error, skip_file"),
        ("edge_features=1", "expected true or false"),
        ("step_events=0", "at least 1"),
        ("label=x", "expected a class"),
        ("files=3", "expected a list of paths"),
        ("schema=7", "expected a text"),
        ("max_nodes", "expected key=value"),
    ],
)
def test_a_wrong_setting_is_refused_by_a_sentence(setting, message):
    with pytest.raises(ConfigurationError, match=message):
        config.load(None, [setting], schema="hzz", output="x")


def test_schema_and_output_are_asked_for():
    with pytest.raises(ConfigurationError, match="schema: expected a value, found none; set --schema NAME"):
        config.load(output="x")
    with pytest.raises(ConfigurationError, match="set --output DIR"):
        config.load(schema="x")
