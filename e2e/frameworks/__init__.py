"""Jobs that train with the real frameworks, as far as these can be installed from PyPI."""
