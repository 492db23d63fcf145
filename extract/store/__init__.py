"""The HDF5 cache of latents: layout, identity, writing, reading, finding and composing."""
