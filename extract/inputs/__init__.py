"""From texts to batches of tokens: templates, tokens with roles, words and their places, windows, batches."""
