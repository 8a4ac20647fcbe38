"""Schemas that come with the package, one TOML file each; impl.events.schema explains the keys."""
