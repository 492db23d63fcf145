"""Which layers matter: every layer alone, together and missing, controls, and what was found, as one record."""
