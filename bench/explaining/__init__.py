"""The code of bench/explain. Needs nothing but Python 3.8."""
