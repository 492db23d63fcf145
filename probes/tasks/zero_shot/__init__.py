"""Tasks that need no fitting: retrieval, reranking, clusters, pairs that are alike, translations, and the odd one out."""
