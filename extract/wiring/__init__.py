"""A mask plan on a decoder: attention, capture of every layer, architectures, and the certificates."""
