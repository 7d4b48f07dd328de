"""Configuration: one definition per option; flags, a TOML file and environment variables are derived from it."""
