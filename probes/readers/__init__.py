"""Published file formats and dataset repositories, read to raw rows that still know their line."""
