"""The networks that are trained: pair heads, autoencoders, token heads, and their parts."""
