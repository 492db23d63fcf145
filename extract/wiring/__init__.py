"""A mask plan on a decoder: attention, capture of every layer and tap, and architectures."""
