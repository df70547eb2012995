"""The code of bench/publish."""
