"""The course as a site: bench/site."""
