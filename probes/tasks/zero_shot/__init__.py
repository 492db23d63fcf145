"""Tasks that need no fitting: retrieval, reranking, clusters, alike pairs, translations, and the odd one out."""
