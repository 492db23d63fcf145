"""Certificates: proof that a plan took effect block by block, and that batches and weights behaved as promised."""
