"""The commands, one function each; `probes.cli.main` has the table of them."""
