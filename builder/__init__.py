"""spark-build: proven container images for NVIDIA Blackwell on aarch64.

Open `builder/pipeline.py` first: it is the whole program as one page of calls.
"""

__version__ = "0.1.0"
