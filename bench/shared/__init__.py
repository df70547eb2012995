"""What several commands of bench/ use. Needs nothing but Python 3.8."""
