"""The golden record: numbers of every kind of run on tiny decoders."""
