"""The command `icecore`."""
