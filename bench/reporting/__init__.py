"""The code of bench/report. Needs nothing but Python 3.8."""
