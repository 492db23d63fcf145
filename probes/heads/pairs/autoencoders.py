"""What the layer-wise autoencoders are called, and what declares their options."""

from extract.names import later
from probes.fitting.epochs import FitOptions

AUTOENCODER = "autoencoder"
DEFAULTS = FitOptions(batch_size=64, max_epochs=20, patience=5)
SOURCES = (later("probes.networks.autoencoder:LayerAutoencoder"), DEFAULTS)
